"""RULER's two question-answering tasks: the paragraphs that hold the answer among others that do not.

After RULER (arXiv 2404.06654): its first is of SQuAD, its second of HotpotQA; each reads either layout here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from kvz.bench.metrics import ANY_FOUND, Metric
from kvz.bench.tasks.articles import Asked, read_asked
from kvz.bench.tasks.fit import fit
from kvz.bench.tasks.task import Counter, Sample
from kvz.bench.tasks.words import generator

__all__ = ["RulerQa", "load_ruler_qa"]


@dataclass(frozen=True)
class RulerQa:
    """One question a context; the other paragraphs are those of its own article first, then any of the file.

    `depth` is where the first needed paragraph is. A file with too few paragraphs for the length is refused.
    """

    name: str
    asked: tuple[Asked, ...]
    licence: str
    metric: Metric = ANY_FOUND
    shared: bool = False
    turns: bool = False
    new_tokens: int = 32

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens, one for each question of the file at most. Raises UsageError."""
        order = generator(seed, self.name).sample(self.asked, min(count, len(self.asked)))
        every = list(dict.fromkeys(text for asked in self.asked for text in (*asked.needed, *asked.others)))
        draws = (generator(seed, self.name, number) for number in range(len(order)))
        return [self._sample(asked, every, counter, tokens, draw) for asked, draw in zip(order, draws, strict=True)]

    def _sample(self, asked: Asked, every: list[str], counter: Counter, tokens: int, draw: Random) -> Sample:
        near = draw.sample(asked.others, len(asked.others))
        known = {*asked.needed, *asked.others}
        others = [*near, *draw.sample([text for text in every if text not in known], len(every) - len(known))]
        depths = [draw.random() for _ in asked.needed]
        words = [text.split(" ") for text in others]

        def documents(count: int) -> str:
            texts = _cut(words, count)
            for text, depth in zip(asked.needed, depths, strict=True):
                texts.insert(round(depth * len(texts)), text)
            return "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(texts, 1))

        context = fit(documents, counter, tokens, sum(map(len, words)))
        depth = context.index(asked.needed[0]) / len(context)
        return Sample(context, (asked.question,), {"length": tokens, "depth": round(depth, 2)})


def load_ruler_qa(name: str, source: Path) -> RulerQa:
    """The task over a file in SQuAD v1.1's or HotpotQA's layout. Raises UsageError."""
    return RulerQa(name, tuple(read_asked(source)), f"{source.name}, with other paragraphs of it")


def _cut(paragraphs: list[list[str]], count: int) -> list[str]:
    """The first `count` words, by paragraph."""
    texts = []
    for words in paragraphs:
        if count <= 0:
            break
        texts.append(" ".join(words[:count]))
        count -= len(words)
    return texts
