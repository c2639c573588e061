"""The pairs to keep, by their scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvz.errors import ScoringError
from kvz.scoring.allocation import Allocation, Demand, Group

__all__ = ["check_finite", "keep_of_group", "select", "top_of_each"]


def select(scores: Tensor, demand: Demand, allocation: Allocation) -> Tensor:
    """The pairs to keep, bool `[N,S]`, for float32 `scores [N,S]`: higher is kept.

    Raises ScoringError, naming the layer, if a score is NaN or infinite, and BudgetTooSmall if the budget is less than
    what every head keeps in any case.
    """
    check_finite(scores, demand.row_layers)
    return allocation.keep(scores, demand)


def check_finite(scores: Tensor, row_layers: tuple[int, ...]) -> None:
    """Raise ScoringError, naming the layer, if any of `scores [N,S]` is NaN or infinite."""
    for layer, finite in zip(row_layers, torch.isfinite(scores).all(1).tolist(), strict=True):
        if not finite:
            raise ScoringError(f"layer {layer} has scores that are NaN or infinite; try --dtype float32")


def keep_of_group(ranked: Tensor, group: Group) -> Tensor:
    """The pairs that the rows of one group keep, of their scores `[rows,S]`; infinite ones come first."""
    rows, length = ranked.shape
    first = top_of_each(ranked, min(group.least, length))
    if rows == 1 and group.least < group.count:
        return top_of_each(ranked, group.count)
    # Position first, so that ties go to the earlier position in any head.
    ordered = ranked.masked_fill(first, math.inf).t().reshape(1, -1)
    return top_of_each(ordered, group.count).view(length, rows).t().contiguous()


def top_of_each(scores: Tensor, keep: int) -> Tensor:
    """Mask of exactly `keep` largest in each row of `scores [rows,n]`; among equals the first ones win."""
    count = scores.shape[1]
    if keep >= count:
        return torch.ones_like(scores, dtype=torch.bool)
    least = torch.kthvalue(scores, count - keep + 1, dim=1, keepdim=True).values
    above = scores > least
    ties = scores == least
    room = keep - above.sum(1, keepdim=True)
    return above | (ties & (ties.cumsum(1, dtype=torch.int32) <= room))
