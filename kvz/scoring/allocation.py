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

    def counts(self, shape: tuple[int, int, int], budget: Budget, recent: int) -> tuple[int, int]:
        """Pairs kept (of all, or of each head), and of each head in any case, for scores of `shape` (L, H, S).

        Raises UsageError if the budget is too small; it can be asked before there are scores.
        """
        ...

    def keep(self, scores: Tensor, budget: Budget, recent: int) -> Tensor:
        """The pairs to keep, bool `[L,H,S]`, for finite `scores [L,H,S]`; the last `recent` of every head are."""
        ...


def select(scores: Tensor, budget: Budget, allocation: Allocation, recent: int = 0) -> Tensor:
    """The pairs to keep, bool `[L,H,S]`, for float32 `scores [L,H,S]`: higher is kept.

    The last `recent` pairs of every head are kept whatever they score, and count. Raises ScoringError if a score is NaN
    or infinite, and UsageError if the budget is too small for what every head keeps in any case.
    """
    for layer, finite in enumerate(torch.isfinite(scores).flatten(1).all(1).tolist()):
        if not finite:
            raise ScoringError(f"layer {layer} has scores that are NaN or infinite; try --dtype float32")
    return allocation.keep(scores, budget, recent)


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

    def counts(self, shape: tuple[int, int, int], budget: Budget, recent: int) -> tuple[int, int]:
        layers, heads, length = shape
        count = budget.of(layers * heads, length)
        guaranteed = max(1, recent, int(Fraction(str(self.floor)) * count / (layers * heads)))
        if count < guaranteed * layers * heads:
            raise _too_small(budget, guaranteed, length)
        return count, guaranteed

    def keep(self, scores: Tensor, budget: Budget, recent: int) -> Tensor:
        layers, heads, length = scores.shape
        count, guaranteed = self.counts((layers, heads, length), budget, recent)
        ranked = _with_recent(scores, recent).view(layers * heads, length)
        first = _top(ranked, guaranteed).view(layers, heads, length)
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

    def counts(self, shape: tuple[int, int, int], budget: Budget, recent: int) -> tuple[int, int]:
        count, guaranteed = budget.of(1, shape[2]), max(1, recent)
        if count < guaranteed:
            raise _too_small(budget, guaranteed, shape[2])
        return count, guaranteed

    def keep(self, scores: Tensor, budget: Budget, recent: int) -> Tensor:
        layers, heads, length = scores.shape
        count, _ = self.counts((layers, heads, length), budget, recent)
        return _top(_with_recent(scores, recent).view(layers * heads, length), count).view(layers, heads, length)


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


def _with_recent(scores: Tensor, recent: int) -> Tensor:
    """A copy of the scores in which the last `recent` rank above everything."""
    ranked = scores.clone(memory_format=torch.contiguous_format)
    ranked[:, :, scores.shape[2] - recent :] = math.inf
    return ranked


def _too_small(budget: Budget, guaranteed: int, length: int) -> UsageError:
    least = math.ceil(1e6 * guaranteed / length) / 1e6
    pairs = "the 1 pair" if guaranteed == 1 else f"the {guaranteed} pairs"
    return UsageError(
        f"{budget} is too small for {pairs} that every head keeps of {length}; the least is {least:g}; "
        "-r 1 keeps everything"
    )


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
