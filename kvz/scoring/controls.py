"""Controls: what a method must beat, and the full cache that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvz.errors import UsageError
from kvz.scoring.allocation import Allocation, Uniform
from kvz.scoring.method import Context, ScoringMethod, Setting, Spans, empty_scores

if TYPE_CHECKING:
    from torch import Tensor

    from kvz.models.language_model import LanguageModel

__all__ = ["Full", "RandomPairs", "Recent"]


@dataclass(frozen=True)
class Full(ScoringMethod):
    """Every pair, whatever the budget."""

    @property
    def name(self) -> str:
        return "full"

    def protect(self, setting: Setting) -> Spans:
        """All tokens."""
        return ((0, setting.length),)

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """The same score for all; it is not asked for, since everything is protected."""
        return empty_scores(model, len(context.ids))


@dataclass(frozen=True)
class RandomPairs(ScoringMethod):
    """Pairs at random, the same ones for the same `seed`."""

    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed {self.seed}: give a number from 0 to 2^63 - 1")

    @property
    def name(self) -> str:
        return "random"

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        done(len(context.ids))
        return torch.rand(empty_scores(model, len(context.ids)).shape, generator=generator)


@dataclass(frozen=True)
class Recent(ScoringMethod):
    """StreamingLLM (arXiv 2309.17453): `sink` first tokens and the most recent ones."""

    sink: int = 4

    def __post_init__(self) -> None:
        if self.sink < 0:
            raise UsageError(f"sink of {self.sink} tokens: give 0 or more")

    @property
    def name(self) -> str:
        return "recent"

    def allocation(self) -> Allocation:
        return Uniform()

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        import torch

        length = len(context.ids)
        newest = torch.arange(length, dtype=torch.float32)
        newest[: self.sink] = length
        done(length)
        return newest.expand(model.geometry.rows_total, length).contiguous()
