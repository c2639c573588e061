"""Chains of pointers in a real text, several asked for over one context: where does a name lead to in the end?

After the multi-hop look-ups of SCBench (arXiv 2412.10319), in words of our own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random

from kvz.bench.metrics import ALL_FOUND, Metric
from kvz.bench.tasks.fit import fit
from kvz.bench.tasks.haystack import Haystack, hide
from kvz.bench.tasks.task import Counter, Question, Sample
from kvz.bench.tasks.words import NUMBER, WORD, distinct, generator

__all__ = ["MultiHop"]


@dataclass(frozen=True)
class MultiHop:
    """`asked` chains of `hops` names each, the last of which leads to a number; their links lie mixed, in any order."""

    name: str
    haystack: Haystack
    turns: bool = False
    asked: int = 4
    hops: int = 3
    metric: Metric = ALL_FOUND
    shared: bool = True
    new_tokens: int = 64

    @property
    def licence(self) -> str:
        """Where its text comes from."""
        return self.haystack.licence

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens. Raises UsageError for too few."""
        return [self._sample(counter, tokens, generator(seed, "multi-hop", number)) for number in range(count)]

    def _sample(self, counter: Counter, tokens: int, draw: Random) -> Sample:
        names = distinct(lambda: WORD.draw(draw), self.asked * self.hops)
        ends = distinct(lambda: NUMBER.draw(draw), self.asked)
        chains = [[*names[self.hops * n : self.hops * (n + 1)], end] for n, end in enumerate(ends)]
        links = [f"{a} leads to {b}." for chain in chains for a, b in itertools.pairwise(chain)]
        depths = [draw.random() for _ in links]
        text = self.haystack.sentences(draw)
        context = fit(lambda n: hide(text(n), links, depths), counter, tokens)
        questions = [Question(_ASKED.format(first=chain[0]), (chain[-1],)) for chain in chains]
        return Sample(context, tuple(questions), {"length": tokens})


_ASKED = (
    "Start at {first} and go on from each name to the name that it leads to, until you come to a number. Which number?"
)
