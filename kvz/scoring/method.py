"""What a scoring method is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from kvz.scoring.allocation import Allocation, Nonuniform
from kvz.scoring.budget import Budget

if TYPE_CHECKING:
    from torch import Tensor

    from kvz.cache.full import FullCache
    from kvz.models.language_model import LanguageModel
    from kvz.prompt import Frame

__all__ = ["Context", "ScoringMethod", "Setting", "Spans", "empty_scores"]

Spans = tuple[tuple[int, int], ...]
"""Ranges (start, end) of context tokens."""


@dataclass(frozen=True)
class Setting:
    """What is known before any work: the model, the frame, the context's `length`, and the budget of one head.

    `length` is in tokens, `per_head` in pairs.
    """

    model: LanguageModel
    frame: Frame
    length: int
    per_head: int


@dataclass(frozen=True)
class Context:
    """A prefilled context: the frame around it, its ids, and the full cache of prefix + context."""

    frame: Frame
    ids: tuple[int, ...]
    cache: FullCache

    @property
    def prefix(self) -> int:
        """Tokens before the context, which get no score."""
        return len(self.frame.prefix_ids)


class ScoringMethod(ABC):
    """Scores the pairs of a context: the higher, the more worth keeping.

    A frozen dataclass whose fields are the method's options; they go into the manifest. Options are checked before
    torch is imported, which takes seconds: its file imports torch, and what needs it, where it scores.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the registry and in manifests."""

    @abstractmethod
    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[N,S]` float32 on the CPU, a row for each KV head of each full layer (`geometry.rows`).

        `done` is told how many context tokens have been scored since it was told last.
        """

    def parameters(self) -> dict[str, int | float | str | None]:
        """Everything that shapes the scores, for the manifest."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def kept(self, budget: Budget, setting: Setting) -> Budget:
        """How many pairs a user's `budget` keeps; `setting` has the budget as it was given."""
        return budget

    def provenance(self, setting: Setting, budget: Budget) -> dict[str, int | str]:
        """What else shaped the result and is no option, for the manifest; `budget` is the user's."""
        return {}

    def allocation(self) -> Allocation:
        """How the budget is shared unless the user says otherwise: as in the method's paper."""
        return Nonuniform()

    def protect(self, setting: Setting) -> Spans:
        """Context tokens that every head keeps whatever they score; they count. Asked before any work is done.

        Raises UsageError, or another KvzError, if the method cannot work in this setting.
        """
        return ()

    def replayed(self, length: int) -> int:
        """How many of the last context tokens `score` runs through the model again over the cache before them."""
        return 0


def empty_scores(model: LanguageModel, length: int) -> Tensor:
    """Zeros `[N,S]` float32 on the CPU."""
    import torch

    return torch.zeros(model.geometry.rows_total, length)
