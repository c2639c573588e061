"""HSA, RocketKV's hybrid sparse attention (arXiv 2502.14051): few dimensions of page bounds choose pages of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvz.cache.index_plan import PAGE
from kvz.cache.pages import PagedLayer, page_count
from kvz.cache.ragged import RaggedLayer
from kvz.decode.budget import HeadBudget, head_budget
from kvz.decode.policies.selection import (
    Selection,
    Selector,
    Units,
    context_lengths,
    group_mean,
    largest_dims,
    temperature,
)
from kvz.decode.policies.traffic import Traffic, pair_nbytes
from kvz.kernels.page_bounds import pages_of

__all__ = ["HSA"]


@dataclass(frozen=True, eq=False)
class ChosenLayer:
    """What is chosen from in one layer, and how."""

    units: Units
    pages: PagedLayer
    budgets: list[HeadBudget]
    read: Traffic
    made: bool  # pages were made for it, the archive has none that would do


class HSA(Selector):
    """Half the budget reads the bounds of every page in the dimensions where the group's queries are largest."""

    def __init__(self, budget: int, page: int | None = None) -> None:
        """`page` is the size of a page in tokens; None takes the archive's pages where half the budget
        holds one, or the default."""
        super().__init__(budget)
        self.page = page
        self.layers: dict[int, ChosenLayer] = {}

    def prepare_layer(self, index: int, layer: RaggedLayer, prefix: int) -> None:
        lengths, dim = context_lengths(layer, prefix), layer.keys.shape[1]
        stored = layer.pages is not None and layer.pages.size <= self.budget // 2
        pages = pages_of(layer, prefix, self.page if self.page or stored else min(PAGE, self.budget // 2))
        budgets = [head_budget(n, pages.size, self.budget, dim, pages.bits) for n in lengths]
        units = Units.of(layer, prefix, pages.size, [None if b.whole else b.pages for b in budgets])
        read = Traffic.total(_read(b, n, pages, layer) for b, n in zip(budgets, lengths, strict=True))
        self.layers[index] = ChosenLayer(units, pages, budgets, read, pages is not layer.pages)

    def choose(self, layer: int, query: Tensor, scale: float) -> Selection:
        """Of a page's two bounds the one is read that the sign of the group's summed query points to.

        Softmax for each query head, at the temperature of a softmax over all dimensions; then the group's mean.
        """
        held = self.layers[layer]
        tokens, group, dim = query.shape[1:]
        logits = held.units.logits(group, tokens)
        ordered = largest_dims(query, max(1, *(b.dims for b in held.budgets)))
        lower = (query.sum(2) < 0).gather(2, ordered)
        rows = ordered + dim * lower  # of the bounds: maxima first, then minima
        parts = query.gather(3, ordered.unsqueeze(2).expand(-1, -1, group, -1))
        for head, budget in enumerate(held.budgets):
            count = held.units.counts[head]
            if budget.whole:
                logits[head, :, :, :count] = 0
                continue
            bounds = held.pages.rows(head, rows[head, :, : budget.dims])
            part = parts[head, :, :, : budget.dims]
            logits[head, :, :, :count] = part @ bounds * (scale / temperature(query[head], part))
        return held.units.select(group_mean(logits))

    def read(self, layer: int) -> Traffic:
        return self.layers[layer].read

    @property
    def held_nbytes(self) -> int:
        return sum(held.pages.nbytes for held in self.layers.values() if held.made)


def _read(budget: HeadBudget, length: int, pages: PagedLayer, layer: RaggedLayer) -> Traffic:
    """Of one head of `length` context pairs: a bound of every page in some dimensions, and the tokens of some pages."""
    dim, pair = layer.keys.shape[1], pair_nbytes(layer)
    pairs = budget.pairs_read(length, pages.size, dim, pages.bits)
    if budget.whole:
        return Traffic(pairs, length * pair, length)
    bounds = budget.dims * page_count(length, pages.size) * pages.extremes.element_size()
    grid = 0 if pages.grid is None else budget.dims * 2 * pages.grid.element_size()
    taken = min(length, budget.pages * pages.size)
    return Traffic(pairs, bounds + grid + taken * pair, taken)
