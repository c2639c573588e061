"""RULER's variable tracking: a chain of assignments in noise; which variables have the first one's value?

After RULER (arXiv 2404.06654): one chain, four hops, names of five letters. RULER puts a worked example before the
text; here there is none.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from random import Random

from kvz.bench.metrics import ALL_FOUND, Metric
from kvz.bench.tasks.fit import fit
from kvz.bench.tasks.haystack import NOISE, hide
from kvz.bench.tasks.task import Counter, Question, Sample
from kvz.bench.tasks.words import distinct, generator, letters

__all__ = ["VariableTracking"]


@dataclass(frozen=True)
class VariableTracking:
    """One chain of `hops` + 1 variables, in order, at random depths."""

    name: str
    hops: int = 4
    metric: Metric = ALL_FOUND
    shared: bool = False
    turns: bool = False
    new_tokens: int = 64
    licence: str = "made here"

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens. Raises UsageError for too few."""
        return [self._sample(counter, tokens, generator(seed, self.name, number)) for number in range(count)]

    def _sample(self, counter: Counter, tokens: int, draw: Random) -> Sample:
        names = distinct(lambda: letters(draw, 5, string.ascii_uppercase), self.hops + 1)
        value = str(draw.randrange(10**4, 10**5))
        chain = [f"Variable {name} = {source}." for name, source in zip(names, [value, *names], strict=False)]
        depths = sorted(draw.random() for _ in chain)
        text = NOISE.sentences(draw)
        intro = "Variables are given values in this text. Keep track of them.\n\n"
        context = fit(lambda n: intro + hide(text(n), chain, depths), counter, tokens)
        asked = f"Which variables have the value {value}, directly or through another? Name all {len(names)}."
        return Sample(context, (Question(asked, tuple(names)),), {"length": tokens})
