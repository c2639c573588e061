"""Look-ups in lists, several over one context: values of keys, and strings of which the two ends are known.

After SCBench (Li et al., 2024, arXiv 2412.10319), its key-value and prefix-suffix retrieval, with words of our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from kvz.bench.metrics import ALL_FOUND, Metric
from kvz.bench.tasks.fit import fit
from kvz.bench.tasks.haystack import hide
from kvz.bench.tasks.task import Counter, Question, Sample
from kvz.bench.tasks.words import UUID, distinct, generator, growing, letters

__all__ = ["KeyValue", "PrefixSuffix"]


@dataclass(frozen=True)
class KeyValue:
    """A JSON object of identifiers; the pairs asked for are spread evenly over it."""

    name: str
    turns: bool = False
    asked: int = 5
    metric: Metric = ALL_FOUND
    shared: bool = True
    new_tokens: int = 96
    licence: str = "made here"

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens. Raises UsageError for too few."""
        return [self._sample(counter, tokens, generator(seed, "key-value", number)) for number in range(count)]

    def _sample(self, counter: Counter, tokens: int, draw: Random) -> Sample:
        identifiers = distinct(lambda: UUID.draw(draw), 2 * self.asked)
        pairs = list(zip(identifiers[::2], identifiers[1::2], strict=True))
        others = growing(lambda: _entry(UUID.draw(draw), UUID.draw(draw)))
        wanted = [_entry(key, value) for key, value in pairs]

        def listed(count: int) -> str:
            entries = hide(others(count), wanted, _evenly(self.asked), "")
            return f"This is a list of keys with values.\n\n{{\n{entries.rstrip(',')}\n}}"

        questions = [
            Question(f'What is the value of the key "{key}"? Answer with the value alone.', (value,))
            for key, value in pairs
        ]
        draw.shuffle(questions)
        return Sample(fit(listed, counter, tokens), tuple(questions), {"length": tokens})


@dataclass(frozen=True)
class PrefixSuffix:
    """A list of strings; one is asked for by its ends, and for each end there is another string that shares it."""

    name: str
    turns: bool = False
    asked: int = 5
    metric: Metric = ALL_FOUND
    shared: bool = True
    new_tokens: int = 48
    licence: str = "made here"

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens. Raises UsageError for too few."""
        return [self._sample(counter, tokens, generator(seed, "prefix-suffix", number)) for number in range(count)]

    def _sample(self, counter: Counter, tokens: int, draw: Random) -> Sample:
        ends = distinct(lambda: letters(draw, _END), 4 * self.asked)
        quarters = [ends[start::4] for start in range(4)]
        wanted, near = [], []
        for first, last, other_first, other_last in zip(*quarters, strict=True):
            middles = [letters(draw, _MIDDLE) for _ in range(3)]
            wanted.append(first + middles[0] + last)
            near += [first + middles[1] + other_last, other_first + middles[2] + last]
        draw.shuffle(near)
        others = growing(_unlike(set(ends), draw))

        def listed(count: int) -> str:
            lines = [f"{line}\n" for line in [*near[::2], *others(count), *near[1::2]]]
            return "This is a list of strings.\n\n" + hide(lines, wanted, _evenly(self.asked), "\n")

        questions = [
            Question(f'Which string in the list starts with "{w[:_END]}" and ends with "{w[-_END:]}"?', (w,))
            for w in wanted
        ]
        draw.shuffle(questions)
        return Sample(fit(listed, counter, tokens), tuple(questions), {"length": tokens})


_END, _MIDDLE = 4, 8  # letters


def _unlike(ends: set[str], draw: Random) -> Callable[[], str]:
    """Draws strings that begin and end with none of `ends`."""

    def another() -> str:
        while True:
            text = letters(draw, 2 * _END + _MIDDLE)
            if text[:_END] not in ends and text[-_END:] not in ends:
                return text

    return another


def _entry(key: str, value: str) -> str:
    return f'"{key}": "{value}",\n'


def _evenly(count: int) -> list[float]:
    return [(number + 0.5) / count for number in range(count)]
