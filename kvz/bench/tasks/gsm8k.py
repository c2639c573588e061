"""Grade-school sums: worked examples are the context, and other sums of the file are asked over it.

Reads GSM8K's JSONL (`question`, and an `answer` that ends in `#### number`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kvz.bench.metrics import METRICS, Metric
from kvz.bench.tasks.fit import take
from kvz.bench.tasks.rows import Row, read_rows
from kvz.bench.tasks.task import Counter, Question, Sample
from kvz.bench.tasks.words import generator
from kvz.errors import UsageError

__all__ = ["Gsm8k", "Sum", "load_gsm8k"]

_CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's notes for a calculator, such as <<6*2=12>>


@dataclass(frozen=True)
class Sum:
    """A question, how it is worked out, and the number that comes out."""

    question: str
    working: str
    number: str


@dataclass(frozen=True)
class Gsm8k:
    """As many worked examples as fit the length asked for. No two samples ask the same, nor is an example asked."""

    name: str
    sums: tuple[Sum, ...]
    licence: str
    metric: Metric = METRICS["number"]
    shared: bool = True
    turns: bool = False
    new_tokens: int = 256
    asked: int = 8

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` contexts of `tokens` tokens at most, fewer where the file has no more sums. Raises UsageError."""
        order = generator(seed, self.name).sample(self.sums, len(self.sums))
        starts = range(0, len(order) - self.asked, self.asked)[:count]
        return [self._sample(order, start, counter, tokens) for start in starts]

    def _sample(self, order: list[Sum], start: int, counter: Counter, tokens: int) -> Sample:
        end = start + self.asked
        examples = [_shown(example) for example in [*order[end:], *order[:start]]]
        used = examples[: take(examples, counter, tokens)]
        if not used:
            raise UsageError(f"no worked example has {tokens} tokens or fewer; allow longer contexts")
        context = "\n\n".join(used)
        questions = tuple(Question(sum.question, (sum.number,)) for sum in order[start:end])
        return Sample(context, questions, {"length": counter(context), "examples": len(used)})


def load_gsm8k(name: str, source: Path) -> Gsm8k:
    """The task over a JSONL file. Raises UsageError, naming the line."""
    sums = tuple(map(_sum, read_rows(source)))
    if len(sums) <= Gsm8k.asked:
        raise UsageError(f"{source} holds {len(sums)} sums; more than {Gsm8k.asked} are needed, to ask and to show")
    return Gsm8k(name, sums, f"{source.name}, in GSM8K's layout")


def _sum(row: Row) -> Sum:
    working, mark, number = row.text("answer").rpartition("####")
    if not mark or not any(c.isdigit() for c in number):
        raise UsageError(f'{row.where}: "answer" does not end in #### and a number')
    return Sum(row.filled("question"), _CALCULATOR.sub("", working).strip(), number.strip())


def _shown(example: Sum) -> str:
    return f"Question: {example.question}\nAnswer: {example.working}\nThe answer is {example.number}."
