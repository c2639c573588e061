"""Quest (arXiv 2406.10774): pages chosen by an upper bound of their tokens' products with the query."""

from __future__ import annotations

from torch import Tensor

from kvz.cache.pages import PagedLayer, page_count
from kvz.cache.ragged import RaggedLayer
from kvz.decode.policies.selection import Selection, Selector, Units, context_lengths, group_mean
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

    def prepare_layer(self, index: int, layer: RaggedLayer, prefix: int) -> None:
        lengths = context_lengths(layer, prefix)
        size = max(_PAGE, page_count(max(lengths), max(1, self.budget // 2)))
        takes = [None if n <= self.budget else max(1, self.budget // 2 // size) for n in lengths]
        self._layers[index] = Units.of(layer, prefix, size, takes), pages_of(layer, prefix, size)

    def choose(self, layer: int, query: Tensor, scale: float) -> Selection:
        units, pages = self._layers[layer]
        logits = units.logits(query.shape[2], query.shape[1])
        positive, negative = query.clamp_min(0), query.clamp_max(0)
        for head, count in enumerate(units.counts):
            maxima, minima = pages.head(head)
            logits[head, :, :, :count] = positive[head] @ maxima + negative[head] @ minima
        return units.select(group_mean(logits * scale))

    def read(self, layer: int) -> float:
        units, _ = self._layers[layer]
        lengths: list[int] = units.lengths.tolist()
        heads = zip(units.counts, units.takes, lengths, strict=True)
        return sum(n if n <= self.budget else count + min(n, take * units.size) for count, take, n in heads)
