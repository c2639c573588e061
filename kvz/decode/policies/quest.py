"""Quest (arXiv 2406.10774): pages chosen by an upper bound of their tokens' products with the query."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.pages import PagedLayer, page_count, page_layer
from kvz.cache.ragged import RaggedCache
from kvz.decode.policies.hsa import page_rows
from kvz.decode.policies.selection import Head, Selection, Selector

__all__ = ["Quest", "quest_scores"]

PAGE = 16


class Quest(Selector):
    """Both bounds of every page in all dimensions cost a pair a page; half the budget pays for them, half for tokens.

    Pages have 16 tokens, or as many as it takes for a layer's longest head to have its bounds read in half the budget.
    """

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._pages: list[PagedLayer | None] = []

    def prepare(self, cache: RaggedCache, prefix: int) -> None:
        self._pages = []
        for layer in cache.layers:
            longest = max(b - a for a, b in zip(layer.bounds, layer.bounds[1:], strict=False)) - prefix
            size = max(PAGE, page_count(longest, max(1, self.budget // 2)))
            self._pages.append(None if layer.window is not None else page_layer(layer, prefix, size))

    def choose(self, head: Head) -> Selection:
        pages = self._pages[head.layer]
        assert pages is not None
        scores = quest_scores(head.query, *pages.head(head.index), head.scale)
        best = scores.topk(min(len(scores), max(1, self.budget // 2 // pages.size))).indices
        return Selection(page_rows(best, pages.size, len(head.keys)), page_count(len(head.keys), pages.size))


def quest_scores(query: Tensor, maxima: Tensor, minima: Tensor, scale: float) -> Tensor:
    """Score of each page, `[pages]` float32: sum over d of max(q K_max, q K_min), softmax a query head, group mean."""
    wide = query.float()
    upper = wide.clamp_min(0) @ maxima.float() + wide.clamp_max(0) @ minima.float()
    return torch.softmax(upper * scale, 1).mean(0)
