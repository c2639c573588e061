"""RULER's word counts: the common words of a numbered list, and the frequent words of a coded text.

After RULER (arXiv 2404.06654). There, the list's words are single English words and a worked example stands before it;
here they are compounds, so that no word is part of another, and there is no example.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kvz.bench.metrics import ALL_FOUND, Metric
from kvz.bench.tasks.fit import fit
from kvz.bench.tasks.task import Counter, Question, Sample
from kvz.bench.tasks.words import MOST_WORDS, WORD, distinct, generator, growing, letters
from kvz.errors import UsageError

__all__ = ["CommonWords", "FrequentWords"]

_REPEATS = ((4096, 30, 3), (1024, 6, 1), (0, 3, 1))
"""From how many tokens on, how often the common words stand in the list, and all others; the first two are RULER's."""


@dataclass(frozen=True)
class CommonWords:
    """A shuffled list in which `common` words stand 30 times and all others 3; fewer in short contexts."""

    name: str
    common: int = 10
    metric: Metric = ALL_FOUND
    shared: bool = False
    turns: bool = False
    new_tokens: int = 128
    licence: str = "made here"

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens. Raises UsageError for too few."""
        return [self._sample(counter, tokens, generator(seed, self.name, number)) for number in range(count)]

    def _sample(self, counter: Counter, tokens: int, draw: Random) -> Sample:
        often, seldom = next((often, seldom) for least, often, seldom in _REPEATS if tokens >= least)
        common = distinct(lambda: WORD.draw(draw), self.common)
        used = set(common)

        def another() -> str:
            [word] = distinct(lambda: WORD.draw(draw), 1, used)
            used.add(word)
            return word

        others, order = growing(another), draw.random()

        def listed(count: int) -> str:
            words = common * often + others(count) * seldom
            generator(order).shuffle(words)
            return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))

        intro = "In this numbered list of words, some stand more often than others. Remember those.\n\n"
        context = fit(lambda n: intro + listed(n), counter, tokens, MOST_WORDS - self.common)
        asked = f"Which are the {self.common} words that stand most often in the list?"
        return Sample(context, (Question(asked, tuple(common)),), {"length": tokens})


@dataclass(frozen=True)
class FrequentWords:
    """Coded words whose number falls with the square of their rank (a zeta distribution); the first is noise."""

    name: str
    alpha: float = 2.0
    asked: int = 3
    metric: Metric = ALL_FOUND
    shared: bool = False
    turns: bool = False
    new_tokens: int = 64
    licence: str = "made here"

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens. Raises UsageError for too few."""
        return [self._sample(counter, tokens, generator(seed, self.name, number)) for number in range(count)]

    def _sample(self, counter: Counter, tokens: int, draw: Random) -> Sample:
        ranks = max(self.asked + 2, tokens // 50)  # as RULER has it
        words = ["...", *distinct(lambda: letters(draw, 6), ranks - 1)]
        order = draw.random()

        def coded(dots: int) -> list[str]:
            text = [word for rank, word in enumerate(words, 1) for _ in range(int(dots * rank**-self.alpha))]
            generator(order).shuffle(text)
            return text

        intro = "The words of this text are in code. Keep track of how often each of them stands in it.\n\n"
        context = fit(lambda n: intro + " ".join(coded(n)), counter, tokens)
        found = [context.split().count(word) for word in words[1 : self.asked + 2]]
        if len(set(found)) < len(found):
            raise UsageError(f"{self.name}: {tokens} tokens are too few to tell the words apart; ask for more")
        asked = f"Which {self.asked} coded words stand most often in the text? Leave the dots out."
        return Sample(context, (Question(asked, tuple(words[1 : self.asked + 1])),), {"length": tokens})
