"""Reading comprehension: articles joined into one context, with questions spread over all of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvz.bench.metrics import METRICS, Metric
from kvz.bench.tasks.articles import Paragraph, read_articles
from kvz.bench.tasks.fit import take
from kvz.bench.tasks.task import Counter, Sample
from kvz.bench.tasks.words import generator
from kvz.errors import UsageError

__all__ = ["Squad", "load_squad"]


@dataclass(frozen=True)
class Squad:
    """Whole paragraphs of articles, in their order, up to the length asked for; articles are drawn by seed.

    Samples do not share articles; there are fewer of them where the file ends.
    """

    name: str
    articles: tuple[tuple[Paragraph, ...], ...]
    licence: str
    metric: Metric = METRICS["f1"]
    shared: bool = True
    turns: bool = False
    new_tokens: int = 32
    asked: int = 10

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens at most, fewer where the file ends. Raises UsageError."""
        order = generator(seed, self.name).sample(self.articles, len(self.articles))
        made: list[Sample] = []
        while order and len(made) < count:
            paragraphs = [paragraph for article in order for paragraph in article]
            taken = paragraphs[: take([p.text for p in paragraphs], counter, tokens)]
            order = order[max(1, _articles(order, len(taken))) :]
            made += self._sample(taken, counter)
        if not made and count:
            raise UsageError(f"no paragraph with questions has {tokens} tokens or fewer; allow longer ones")
        return made

    def _sample(self, paragraphs: list[Paragraph], counter: Counter) -> list[Sample]:
        """One sample, or none if nothing is asked of these paragraphs."""
        questions = [question for paragraph in paragraphs for question in paragraph.questions]
        if not questions:
            return []
        wanted = min(self.asked, len(questions))
        spread = tuple(questions[number * len(questions) // wanted] for number in range(wanted))
        context = "\n\n".join(paragraph.text for paragraph in paragraphs)
        return [Sample(context, spread, {"length": counter(context)})]


def load_squad(name: str, source: Path) -> Squad:
    """The task over a file in SQuAD v1.1's layout. Raises UsageError."""
    return Squad(name, tuple(map(tuple, read_articles(source))), f"{source.name}, articles in SQuAD's layout")


def _articles(articles: list[tuple[Paragraph, ...]], paragraphs: int) -> int:
    """How many of the articles the paragraphs came from, the last one perhaps in part."""
    count = 0
    while paragraphs > 0:
        paragraphs -= len(articles[count])
        count += 1
    return count
