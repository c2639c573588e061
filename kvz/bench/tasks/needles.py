"""Several sentences hidden in a text at even depths, each asked for by a question of its own over the one context."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kvz.bench.metrics import ALL_FOUND, Metric
from kvz.bench.tasks.fit import fit
from kvz.bench.tasks.haystack import Haystack, hide
from kvz.bench.tasks.task import Counter, Question, Sample
from kvz.bench.tasks.words import NUMBER, WORD, distinct, generator

__all__ = ["Needles"]


@dataclass(frozen=True)
class Needles:
    """`asked` needles in real text."""

    name: str
    haystack: Haystack
    asked: int = 5
    metric: Metric = ALL_FOUND
    shared: bool = True
    turns: bool = False
    new_tokens: int = 32

    @property
    def licence(self) -> str:
        """Where its text comes from."""
        return self.haystack.licence

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens. Raises UsageError for too few."""
        return [self._sample(counter, tokens, generator(seed, self.name, number)) for number in range(count)]

    def _sample(self, counter: Counter, tokens: int, draw: Random) -> Sample:
        keys = distinct(lambda: WORD.draw(draw), self.asked)
        pairs = list(zip(keys, distinct(lambda: NUMBER.draw(draw), self.asked), strict=True))
        needles = [f"The number of the locker called {key} is {value}." for key, value in pairs]
        depths = [(number + 0.5) / self.asked for number in range(self.asked)]
        text = self.haystack.sentences(draw)
        context = fit(lambda n: hide(text(n), needles, depths), counter, tokens)
        questions = [Question(f"What is the number of the locker called {key}?", (value,)) for key, value in pairs]
        draw.shuffle(questions)
        return Sample(context, tuple(questions), {"length": tokens})
