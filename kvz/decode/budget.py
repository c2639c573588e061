"""RocketKV's arithmetic (arXiv 2502.14051): how a budget of pairs a step is split over two stages and three steps.

The unit of a budget `t` is the traffic of one key/value pair of one KV head: t pairs are read in each step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvz.errors import UsageError

__all__ = ["NEW_TOKENS", "HeadBudget", "RocketBudget", "head_budget", "rocket_budget", "rocket_kept"]

NEW_TOKENS = 128
"""Tokens of an answer that RocketKV sets room aside for."""


@dataclass(frozen=True)
class RocketBudget:
    """The paper's split for a prompt that is compressed for one budget.

    `capacity` pairs a head are held after the first stage, new tokens included, `kept` of them from the prompt; pages
    have `page` tokens; the second stage reads `dims` dimensions of each page's bounds and then `tokens` tokens.
    """

    capacity: int
    kept: int
    page: int
    dims: int
    tokens: int


def rocket_budget(prompt: int, new: int, budget: int, head_dim: int) -> RocketBudget:
    """RocketKV's split for `prompt` tokens and `new` to be generated. Raises UsageError if the budget is too small."""
    if budget < 2:
        raise UsageError(f"a budget of {budget} pairs a step selects nothing: give 2 or more")
    length = prompt + new
    ratio = max(1.0, length / budget)
    exponent = min(0.2 + 0.06 * math.log2(ratio), 0.8)
    capacity = int(length / ratio**exponent)
    second = max(1.0, capacity / budget)
    page = math.ceil(math.sqrt(second))
    page = 1 if page > second else page
    dims = max(1, min(head_dim, int(head_dim * page / second)))
    return RocketBudget(capacity, max(1, capacity - new), page, dims, budget // 2)


def rocket_kept(prompt: int, budget: int, head_dim: int) -> int:
    """Pairs a head that the first stage keeps of `prompt` ones, leaving the paper's room for an answer.

    No fewer than a step may read: answers are attended beside the archive here, so small budgets need no room.
    """
    return min(prompt, max(budget, rocket_budget(prompt, NEW_TOKENS, budget, head_dim).kept))


@dataclass(frozen=True)
class HeadBudget:
    """A step's reading of one head of an archive: `dims` of the bounds of each page, then `pages` pages.

    A head that the budget covers is read `whole`, and its pages are not looked at.
    """

    whole: bool
    dims: int
    pages: int

    def pairs_read(self, length: int, page: int, head_dim: int, bits: int = 16) -> float:
        """Traffic of one step over a head of `length` pairs, in 16-bit pairs: both steps of the selection.

        `bits` are those of a page's bound.
        """
        if self.whole:
            return length
        bounds = math.ceil(length / page) * self.dims / (2 * head_dim) * bits / 16
        return bounds + min(length, self.pages * page)


def head_budget(length: int, page: int, budget: int, head_dim: int, bits: int = 16) -> HeadBudget:
    """The split for a head of `length` pairs in pages of `page` tokens: half the budget for bounds, half for pages.

    The page size is that of the archive, so the dimensions follow from it: step 2 reads length / page * dims values,
    which are to be those of budget / 2 pairs: twice as many dimensions where a bound is stored in 8 `bits`.
    """
    if length <= budget:
        return HeadBudget(whole=True, dims=0, pages=0)
    dims = max(1, min(head_dim, int(head_dim * page * budget / length * 16 / bits)))
    return HeadBudget(whole=False, dims=dims, pages=max(1, budget // 2 // page))
