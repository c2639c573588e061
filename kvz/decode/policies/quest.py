"""Quest (arXiv 2406.10774): pages chosen by an upper bound of their tokens' products with the query."""

from __future__ import annotations

from torch import Tensor

from kvz.cache.pages import PagedLayer, page_count
from kvz.cache.ragged import RaggedLayer
from kvz.decode.policies.selection import Selection, Selector, Units, context_lengths, group_mean
from kvz.decode.policies.traffic import Traffic, pair_nbytes
from kvz.kernels.page_bounds import pages_of

__all__ = ["Quest"]

_PAGE = 16


class Quest(Selector):
    """Both bounds of every page in all dimensions cost a pair a page; half the budget pays for them, half for tokens,
    or for one page where pages are larger than that.

    Pages have 16 tokens, or as many as it takes for a layer's longest head to have its bounds read in half the budget.
    """

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._layers: dict[int, tuple[Units, PagedLayer]] = {}
        self._read: dict[int, Traffic] = {}
        self._held = 0

    def prepare_layer(self, index: int, layer: RaggedLayer, prefix: int) -> None:
        lengths = context_lengths(layer, prefix)
        size = max(_PAGE, page_count(max(lengths), max(1, self.budget // 2)))
        takes = [None if n <= self.budget else max(1, self.budget // 2 // size) for n in lengths]
        units, pages = Units.of(layer, prefix, size, takes), pages_of(layer, prefix, size)
        self._layers[index] = units, pages
        self._held += 0 if pages is layer.pages else pages.nbytes
        taken = sum(min(n, take * size) for n, take in zip(lengths, units.takes, strict=True))
        scored = [count for count, take in zip(units.counts, units.takes, strict=True) if take < count]
        grids = 0 if pages.grid is None else len(scored) * pages.grid[0].numel() * pages.grid.element_size()
        bounds = sum(scored) * len(pages.extremes) * pages.extremes.element_size() + grids
        self._read[index] = Traffic(sum(scored) + taken, bounds + taken * pair_nbytes(layer), taken)

    def choose(self, layer: int, query: Tensor, scale: float) -> Selection:
        units, pages = self._layers[layer]
        logits = units.logits(query.shape[2], query.shape[1])
        positive, negative = query.clamp_min(0), query.clamp_max(0)
        for head, (count, take) in enumerate(zip(units.counts, units.takes, strict=True)):
            if take == count:  # taken whole
                logits[head, :, :, :count] = 0
                continue
            maxima, minima = pages.head(head)
            logits[head, :, :, :count] = positive[head] @ maxima + negative[head] @ minima
        return units.select(group_mean(logits * scale))

    def read(self, layer: int) -> Traffic:
        return self._read[layer]

    @property
    def held_nbytes(self) -> int:
        return self._held
