"""One sentence hidden in a text, at depths spread evenly from its start to its end: what a heat map is made of."""

from __future__ import annotations

from dataclasses import dataclass

from kvz.bench.metrics import ALL_FOUND, Metric
from kvz.bench.tasks.fit import fit
from kvz.bench.tasks.haystack import Haystack, hide
from kvz.bench.tasks.task import Counter, Question, Sample
from kvz.bench.tasks.words import NUMBER, WORD, generator

__all__ = ["Needle"]


@dataclass(frozen=True)
class Needle:
    """A needle in a haystack of real text; `depth` is 0 at its start and 1 at its end, `length` in tokens."""

    name: str
    haystack: Haystack
    metric: Metric = ALL_FOUND
    shared: bool = False
    turns: bool = False
    new_tokens: int = 32

    @property
    def licence(self) -> str:
        """Where its text comes from."""
        return self.haystack.licence

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` of them, at depths spread evenly from start to end; one alone is in the middle. Raises UsageError."""
        depths = [0.5] if count == 1 else [number / (count - 1) for number in range(count)]
        return [self._sample(counter, tokens, seed, number, depth) for number, depth in enumerate(depths)]

    def _sample(self, counter: Counter, tokens: int, seed: int, number: int, depth: float) -> Sample:
        draw = generator(seed, self.name, number)
        key, value = WORD.draw(draw), NUMBER.draw(draw)
        needle = f"The number of the locker called {key} is {value}."
        text = self.haystack.sentences(draw)
        context = fit(lambda n: hide(text(n), [needle], [depth]), counter, tokens)
        question = Question(f"What is the number of the locker called {key}?", (value,))
        return Sample(context, (question,), {"length": tokens, "depth": depth})
