"""From scores to pairs kept: exact counts, ties broken by position, at least one pair in every head.

A budget counts context pairs only: the protected prefix is kept in every head beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from kvz.defaults import RATIO
from kvz.errors import ScoringError, UsageError

__all__ = ["ALLOCATIONS", "Budget", "find_allocation", "select"]


@dataclass(frozen=True)
class Budget:
    """How many context pairs to keep: a `ratio` of all of them, or `tokens` pairs a head on average.

    Raises UsageError unless exactly one of the two is given and is in range.
    """

    ratio: float | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.tokens is None):
            raise UsageError("give either a ratio (-r) or a budget of tokens a head (--budget), not both or none")
        if self.ratio is not None and not (math.isfinite(self.ratio) and 0 < self.ratio <= 1):
            raise UsageError(f"ratio {self.ratio:g} is not the share of pairs to keep: give a number in (0, 1]")
        if self.tokens is not None and self.tokens < 1:
            raise UsageError(f"budget of {self.tokens} tokens a head keeps nothing: give 1 or more")

    @classmethod
    def of_options(cls, ratio: float | None, tokens: int | None) -> Budget:
        """The budget a user gave, or the default ratio."""
        return cls(RATIO if ratio is None and tokens is None else ratio, tokens)

    def of(self, heads: int, tokens: int) -> int:
        """Pairs to keep of `heads` heads (over any number of layers) with `tokens` context tokens each."""
        if self.ratio is not None:
            return round(Fraction(str(self.ratio)) * heads * tokens)  # exact: 0.3 is three tenths
        assert self.tokens is not None
        return heads * min(self.tokens, tokens)

    def __str__(self) -> str:
        return f"ratio {self.ratio:g}" if self.ratio is not None else f"budget {self.tokens}"


Allocation = Callable[[Tensor, Budget], Tensor]


def select(scores: Tensor, budget: Budget, allocation: str) -> Tensor:
    """The pairs to keep, bool `[L,H,S]`, for float32 `scores [L,H,S]`: higher is kept.

    Raises ScoringError if a score is NaN or infinite, and UsageError if the budget is too small to leave every head a
    pair, or if there is no such allocation.
    """
    for layer, finite in enumerate(torch.isfinite(scores).flatten(1).all(1).tolist()):
        if not finite:
            raise ScoringError(f"layer {layer} has scores that are NaN or infinite; try --dtype float32")
    return find_allocation(allocation)(scores, budget)


def find_allocation(name: str) -> Allocation:
    """The allocation called `name`; raises UsageError if there is none."""
    if name not in ALLOCATIONS:
        raise UsageError(f"no allocation '{name}'; there are: {', '.join(ALLOCATIONS)}")
    return ALLOCATIONS[name]


def nonuniform(scores: Tensor, budget: Budget) -> Tensor:
    """One top-k over all layers and heads, each head's best pair guaranteed (arXiv 2505.23416)."""
    layers, heads, length = scores.shape
    keep = budget.of(layers * heads, length)
    if keep < layers * heads:
        raise UsageError(
            f"{budget} keeps {keep} pairs, fewer than the {layers * heads} heads; the least is {_least(length)}"
        )
    by_position = scores.permute(2, 0, 1).clone(
        memory_format=torch.contiguous_format
    )  # so that ties go to the earlier position, in any head
    by_position.scatter_(0, by_position.argmax(0, keepdim=True), float("inf"))
    mask = _top(by_position.view(1, -1), keep)
    return mask.view(length, layers, heads).permute(1, 2, 0).contiguous()


def uniform(scores: Tensor, budget: Budget) -> Tensor:
    """The same number of pairs in every head, each head's best."""
    layers, heads, length = scores.shape
    keep = budget.of(1, length)
    if keep < 1:
        raise UsageError(f"{budget} keeps no pair of {length} in a head; the least is {_least(length)}")
    return _top(scores.reshape(layers * heads, length), keep).view(layers, heads, length)


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


ALLOCATIONS: dict[str, Allocation] = {"nonuniform": nonuniform, "uniform": uniform}
