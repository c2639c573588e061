"""From scores to pairs kept: exact counts, ties broken by position, at least one pair in every head."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from kvz.errors import ScoringError, UsageError
from kvz.scoring.budget import Budget

__all__ = ["ALLOCATIONS", "Allocation", "Nonuniform", "Uniform", "make_allocation", "select"]


class Allocation(Protocol):
    """How a budget is shared among layers and heads."""

    @property
    def name(self) -> str:
        """Name in the registry and in manifests."""
        ...

    def parameters(self) -> Mapping[str, int | float | str]:
        """Everything that shapes the sharing, for the manifest."""
        ...

    def keep(self, scores: Tensor, budget: Budget) -> Tensor:
        """The pairs to keep, bool `[L,H,S]`, for finite `scores [L,H,S]`; UsageError if the budget is too small."""
        ...


def select(scores: Tensor, budget: Budget, allocation: Allocation) -> Tensor:
    """The pairs to keep, bool `[L,H,S]`, for float32 `scores [L,H,S]`: higher is kept.

    Raises ScoringError if a score is NaN or infinite, and UsageError if the budget is too small for what the allocation
    guarantees every head.
    """
    for layer, finite in enumerate(torch.isfinite(scores).flatten(1).all(1).tolist()):
        if not finite:
            raise ScoringError(f"layer {layer} has scores that are NaN or infinite; try --dtype float32")
    return allocation.keep(scores, budget)


@dataclass(frozen=True)
class Nonuniform:
    """One top-k over all layers and heads (arXiv 2505.23416), each head's best pairs guaranteed.

    `floor` is the share of a uniform budget that every head keeps at least (Ada-KV's alpha); one pair in any case.
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise UsageError(f"floor {self.floor:g}: give the share of a uniform budget that each head keeps, 0 to 1")

    @property
    def name(self) -> str:
        return "nonuniform"

    def parameters(self) -> dict[str, int | float | str]:
        return {"floor": self.floor}

    def keep(self, scores: Tensor, budget: Budget) -> Tensor:
        layers, heads, length = scores.shape
        count = budget.of(layers * heads, length)
        if count < layers * heads:
            least = _least(length)
            raise UsageError(
                f"{budget} keeps {count} pairs, fewer than the {layers * heads} heads; the least is {least}"
            )
        guaranteed = max(1, int(Fraction(str(self.floor)) * count / (layers * heads)))
        first = _top(scores.reshape(layers * heads, length), guaranteed).view(layers, heads, length)
        # Position first, so that ties go to the earlier position in any head.
        ranked = scores.masked_fill(first, math.inf).permute(2, 0, 1).reshape(1, -1)
        return _top(ranked, count).view(length, layers, heads).permute(1, 2, 0).contiguous()


@dataclass(frozen=True)
class Uniform:
    """The same number of pairs in every head, each head's best."""

    @property
    def name(self) -> str:
        return "uniform"

    def parameters(self) -> dict[str, int | float | str]:
        return {}

    def keep(self, scores: Tensor, budget: Budget) -> Tensor:
        layers, heads, length = scores.shape
        count = budget.of(1, length)
        if count < 1:
            raise UsageError(f"{budget} keeps no pair of {length} in a head; the least is {_least(length)}")
        return _top(scores.reshape(layers * heads, length), count).view(layers, heads, length)


ALLOCATIONS: dict[str, Callable[..., Allocation]] = {
    "nonuniform": Nonuniform,
    "uniform": Uniform,
}


def make_allocation(name: str, **options: float) -> Allocation:
    """The allocation called `name` with its options; raises UsageError if there is none or it takes no such option."""
    if name not in ALLOCATIONS:
        raise UsageError(f"no allocation '{name}'; there are: {', '.join(ALLOCATIONS)}")
    try:
        return ALLOCATIONS[name](**options)
    except TypeError as error:
        raise UsageError(f"allocation '{name}' does not take {', '.join(options)}") from error


def _least(length: int) -> str:
    """The smallest ratio, rounded up, that keeps a pair of `length` in a head."""
    return f"{math.ceil(1e6 / length) / 1e6:g}"


def _top(scores: Tensor, keep: int) -> Tensor:
    """Mask of exactly `keep` largest in each row of `scores [rows,n]`; among equals the first ones win."""
    count = scores.shape[1]
    if keep >= count:
        return torch.ones_like(scores, dtype=torch.bool)
    least = torch.kthvalue(scores, count - keep + 1, dim=1, keepdim=True).values
    above = scores > least
    ties = scores == least
    room = keep - above.sum(1, keepdim=True)
    return above | (ties & (ties.cumsum(1, dtype=torch.int32) <= room))
