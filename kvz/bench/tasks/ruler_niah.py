"""RULER's eight needle tasks: one or more keys, values and queries, in noise, real text, or nothing but needles.

After RULER (Hsieh et al., 2024, arXiv 2404.06654), `synthetic.yaml`: the same settings with words of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

from kvz.bench.metrics import ALL_FOUND, Metric
from kvz.bench.tasks.fit import fit
from kvz.bench.tasks.haystack import Filler, hide
from kvz.bench.tasks.task import Counter, Question, Sample
from kvz.bench.tasks.words import MOST_WORDS, NUMBER, WORD, Kind, distinct, generator, growing

__all__ = ["NeedleField", "Niah"]


@dataclass(frozen=True)
class NeedleField:
    """A filler of nothing but needles, one a unit."""

    keys: Kind
    values: Kind
    end: str = "\n"
    licence: str = "made here"

    @property
    def most(self) -> int | None:
        """How many different words there are for keys; other kinds do not run out."""
        return MOST_WORDS if self.keys is WORD else None

    def sentences(self, draw: Random, taken: Collection[str]) -> Callable[[int], list[str]]:
        """The first `n` needles of a series; none has a key or a value that is in `taken`, or that another has."""
        used = set(taken)

        def another() -> str:
            [key] = distinct(lambda: self.keys.draw(draw), 1, used)
            [value] = distinct(lambda: self.values.draw(draw), 1, used)
            used.update((key, value))
            return _needle(key, value, self.values) + self.end

        return growing(another)


@dataclass(frozen=True)
class Niah:
    """`hidden` keys with `each` values a key, of which `asked` keys are asked for in one question."""

    name: str
    filler: Filler
    keys: Kind = WORD
    values: Kind = NUMBER
    hidden: int = 1
    each: int = 1
    asked: int = 1
    metric: Metric = ALL_FOUND
    shared: bool = False
    turns: bool = False
    new_tokens: int = 128

    @property
    def licence(self) -> str:
        """Where its text comes from."""
        return self.filler.licence

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens. Raises UsageError for too few."""
        return [self._sample(counter, tokens, generator(seed, self.name, number)) for number in range(count)]

    def _sample(self, counter: Counter, tokens: int, draw: Random) -> Sample:
        keys = distinct(lambda: self.keys.draw(draw), self.hidden)
        values = distinct(lambda: self.values.draw(draw), self.hidden * self.each)
        pairs = [(keys[number // self.each], value) for number, value in enumerate(values)]
        needles = [_needle(key, value, self.values) for key, value in pairs]
        draw.shuffle(needles)
        depths = sorted(draw.random() for _ in needles)
        text = self.filler.sentences(draw, {*keys, *values})
        intro = f"Secret {self.values.several} are hidden in this text. Remember them.\n\n"
        context = fit(
            lambda n: intro + hide(text(n), needles, depths, self.filler.end), counter, tokens, self.filler.most
        )
        answers = tuple(value for key, value in pairs if key in keys[: self.asked])
        return Sample(context, (Question(self._question(keys[: self.asked]), answers),), {"length": tokens})

    def _question(self, keys: list[str]) -> str:
        if self.each * self.asked == 1:
            return f"What is the secret {self.values.one} of {keys[0]}?"
        named = " and ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))
        return f"What are all the secret {self.values.several} of {named}? Name every one."


def _needle(key: str, value: str, values: Kind) -> str:
    return f"The secret {values.one} of {key} is {value}."
