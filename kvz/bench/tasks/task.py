"""What a task is: contexts of a given length, each with questions, and the metric that scores the answers.

A task knows nothing of models. It is given a function that counts a text's tokens, and the same seed gives the same
samples. Tasks made here come within 2 % of the length asked for; tasks read from files give what they have, at most
that length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvz.bench.metrics import Metric

__all__ = ["Counter", "Question", "Sample", "Task"]

Counter = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True)
class Question:
    """A question and its answers, one or more; whether one is enough or all are wanted is the metric's affair.

    `kind` tells questions of different kinds in one file apart, for a metric that has to.
    """

    text: str
    answers: tuple[str, ...]
    kind: str = ""


@dataclass(frozen=True)
class Sample:
    """A context, the questions asked of it, and facts to group results by, such as `length` and `depth`."""

    context: str
    questions: tuple[Question, ...]
    facts: dict[str, float | str] = field(default_factory=dict)


class Task(Protocol):
    """Something to measure on."""

    @property
    def name(self) -> str:
        """As the registry has it."""

    @property
    def metric(self) -> Metric:
        """What scores an answer."""

    @property
    def shared(self) -> bool:
        """Whether several questions are asked of one context."""

    @property
    def turns(self) -> bool:
        """Whether a context's questions are turns of one conversation."""

    @property
    def new_tokens(self) -> int:
        """How long an answer may be, in tokens."""

    @property
    def licence(self) -> str:
        """Where its text comes from, in a few words."""

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` samples of `tokens` tokens of context (fewer from a file that has no more). Raises UsageError."""
