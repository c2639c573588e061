"""Head-level allocation: the best heads keep everything, the others only what is protected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvz.scoring.allocation import Allocation, Demand, Group

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Head"]


@dataclass(frozen=True)
class Head(Allocation):
    """Heads are ranked by their largest score (KVzip's head-level variant, DuoAttention's retrieval heads).

    In that order each head keeps all its pairs, until the budget is used up; the head it ends in keeps its best pairs,
    and all later ones only the protected ones. Of equal scores the lower layer, then the lower head comes first, and
    inside a head the more recent pair.
    """

    @property
    def name(self) -> str:
        return "head"

    def groups(self, demand: Demand) -> list[Group]:
        """One group of all heads."""
        count = demand.budget.of(demand.rows, demand.length)
        if count < demand.least * demand.rows:
            raise demand.too_small(demand.least)
        return [Group(0, demand.rows, count, demand.least)]

    def keep(self, scores: Tensor, demand: Demand) -> Tensor:
        """The pairs to keep, bool `[N,S]`."""
        from kvz.scoring.selection import top_of_each

        [group] = self.groups(demand)
        ranked = scores.masked_fill(demand.protected, math.inf).flip(1)
        kept = top_of_each(ranked, group.least).flip(1)
        extra = demand.length - group.least
        room = group.count - group.least * demand.rows
        for row in scores.amax(1).argsort(descending=True, stable=True).tolist():
            more = min(extra, room)
            kept[row] = top_of_each(ranked[row : row + 1], group.least + more).flip(1)[0]
            room -= more
        return kept
