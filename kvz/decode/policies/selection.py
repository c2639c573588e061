"""What a sparse policy chooses of one head, and how: the interface of HSA, Quest, SparQ and Exact-TopK."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from kvz.cache.ragged import RaggedCache

__all__ = ["Head", "Selection", "Selector"]


@dataclass(frozen=True, eq=False)
class Head:
    """One head of a layer for one new token: `query [G,D]`, its context's `keys [L,D]`, and the attention scale."""

    layer: int
    index: int
    query: Tensor
    keys: Tensor
    scale: float


@dataclass(frozen=True, eq=False)
class Selection:
    """`rows` of the head's context to attend, any order; one selection for the whole GQA group.

    `coverage [G]`, where a policy estimates it, is the share of the softmax's mass that lies on those rows: the rest is
    then taken to fall on the mean value. `read` is the traffic of choosing, in pairs.
    """

    rows: Tensor
    read: float
    coverage: Tensor | None = None


class Selector(ABC):
    """Chooses which pairs of a head a new token attends, within a budget of pairs a step."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    @abstractmethod
    def prepare(self, cache: RaggedCache, prefix: int) -> None:
        """Look at the archive once, before the first question; `prefix` pairs of every head are not to be chosen."""

    @abstractmethod
    def choose(self, head: Head) -> Selection:
        """The pairs of a head longer than the budget."""
