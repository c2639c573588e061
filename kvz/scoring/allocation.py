"""From scores to pairs kept: exact counts, ties broken by position, at least one pair in every head.

An allocation cuts the heads into groups; inside a group the best pairs win, each head's own best ones first up to what
it is guaranteed. Rows of a score matrix `[N,S]` are the KV heads of all full layers, layer after layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING

from kvz.errors import BudgetTooSmall, UsageError
from kvz.scoring.budget import Budget

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AdaKV", "Allocation", "Demand", "Group", "Nonuniform", "Uniform"]


@dataclass(frozen=True, eq=False)
class Demand:
    """What is wanted of an allocation: a budget, over the layer of each row, with `protected [S]` bool tokens kept."""

    budget: Budget
    row_layers: tuple[int, ...]
    protected: Tensor

    @property
    def rows(self) -> int:
        """N: KV heads that pairs are evicted from."""
        return len(self.row_layers)

    @property
    def length(self) -> int:
        """S: context tokens."""
        return self.protected.shape[0]

    @property
    def least(self) -> int:
        """Pairs that every head keeps in any case: the protected ones, or one."""
        return max(1, int(self.protected.sum()))

    @property
    def per_head(self) -> int:
        """Pairs a head, if every head had the same number."""
        return self.budget.of(1, self.length)

    @property
    def keeps_everything(self) -> bool:
        """Whether nothing can be evicted. Both counts: an allocation rounds over a head or over all of them."""
        covered = self.per_head == self.length and self.budget.of(self.rows, self.length) == self.rows * self.length
        return covered or self.least >= self.length

    def too_small(self, pairs: int) -> BudgetTooSmall:
        """The error of a budget that cannot give every head `pairs` pairs."""
        held = f"{pairs} of the document's {self.length} tokens"
        return BudgetTooSmall(f"{self.budget} is too small: every head keeps at least {held}")


@dataclass(frozen=True)
class Group:
    """Rows first:last share `count` pairs, each row guaranteed its `least` best."""

    first: int
    last: int
    count: int
    least: int


class Allocation(ABC):
    """How a budget is shared among layers and heads: a frozen dataclass whose fields are its options."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the registry and in manifests."""

    @abstractmethod
    def groups(self, demand: Demand) -> list[Group]:
        """Groups of rows, in order. Raises BudgetTooSmall; it is asked before any work."""

    def parameters(self) -> dict[str, int | float | str]:
        """Everything that shapes the sharing, for the manifest."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def keep(self, scores: Tensor, demand: Demand) -> Tensor:
        """The pairs to keep, bool `[N,S]`, for finite `scores [N,S]`."""
        import torch

        from kvz.scoring.selection import keep_of_group

        ranked = scores.masked_fill(demand.protected, math.inf)
        return torch.cat([keep_of_group(ranked[g.first : g.last], g) for g in self.groups(demand)])


@dataclass(frozen=True)
class Nonuniform(Allocation):
    """One top-k over all layers and heads (arXiv 2505.23416), each head's best pairs guaranteed.

    `floor` is the share of a uniform budget that every head keeps at least (Ada-KV's alpha); one pair in any case.
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    @property
    def name(self) -> str:
        return "nonuniform"

    def groups(self, demand: Demand) -> list[Group]:
        count = demand.budget.of(demand.rows, demand.length)
        return [_group(demand, 0, demand.rows, count, self.floor)]


@dataclass(frozen=True)
class AdaKV(Allocation):
    """A uniform budget for every layer, one top-k over the heads of each (Ada-KV, arXiv 2407.11550).

    `floor` is the paper's alpha: the share of a uniform budget that every head keeps at least.
    """

    floor: float = 0.2

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    @property
    def name(self) -> str:
        return "adakv"

    def groups(self, demand: Demand) -> list[Group]:
        groups, first = [], 0
        for _, rows in groupby(demand.row_layers):
            heads = len(list(rows))
            count = demand.budget.of(heads, demand.length)
            groups.append(_group(demand, first, first + heads, count, self.floor))
            first += heads
        return groups


@dataclass(frozen=True)
class Uniform(Allocation):
    """The same number of pairs in every head, each head's best."""

    @property
    def name(self) -> str:
        return "uniform"

    def groups(self, demand: Demand) -> list[Group]:
        return [_group(demand, row, row + 1, demand.per_head, 0.0) for row in range(demand.rows)]


def _check_floor(floor: float) -> None:
    if not 0 <= floor <= 1:
        raise UsageError(f"floor {floor:g}: give the share of a uniform budget that each head keeps, 0 to 1")


def _group(demand: Demand, first: int, last: int, count: int, floor: float) -> Group:
    """A group whose rows are guaranteed the share `floor` of an equal part, and what they keep in any case."""
    rows = last - first
    least = max(demand.least, int(Fraction(str(floor)) * count / rows))
    if count < least * rows:
        raise demand.too_small(least)
    return Group(first, last, count, least)
