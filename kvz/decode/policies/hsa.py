"""HSA, RocketKV's hybrid sparse attention (arXiv 2502.14051): few dimensions of page bounds choose pages of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.pages import PagedLayer, page_count, page_layer
from kvz.cache.ragged import RaggedCache
from kvz.decode.budget import head_budget
from kvz.decode.policies.selection import Head, Selection, Selector

__all__ = ["HSA", "hsa_scores", "page_rows"]

PAGE = 4
"""Tokens a page unless an archive or a user says otherwise: the paper's pages have 2 to 5 at r = 0.3."""


class HSA(Selector):
    """Half the budget reads the bounds of every page in the dimensions where the group's queries are largest."""

    def __init__(self, budget: int, page: int = PAGE) -> None:
        super().__init__(budget)
        self.page = page
        self._pages: list[PagedLayer | None] = []

    def prepare(self, cache: RaggedCache, prefix: int) -> None:
        self._pages = [None if x.window is not None else page_layer(x, prefix, self.page) for x in cache.layers]

    def choose(self, head: Head) -> Selection:
        pages = self._pages[head.layer]
        assert pages is not None
        length, dim = head.keys.shape
        split = head_budget(length, self.page, self.budget, dim)
        scores = hsa_scores(head.query, *pages.head(head.index), split.dims, head.scale)
        best = scores.topk(min(split.pages, len(scores))).indices
        rows = page_rows(best, self.page, length)
        return Selection(rows, page_count(length, self.page) * split.dims / (2 * dim))


def hsa_scores(query: Tensor, maxima: Tensor, minima: Tensor, dims: int, scale: float) -> Tensor:
    """Score of each page, `[pages]` float32, for a group's `query [G,D]` and bounds `[D,pages]`.

    The `dims` dimensions are those of the largest sum of |q| over the group; of the two bounds the one is read that the
    sign of the group's summed query points to. Softmax for each query head, at the temperature of a softmax over all
    dimensions; then the group's mean.
    """
    wide = query.float()
    size = wide.abs()
    chosen = size.sum(0).topk(dims).indices
    upper = wide.sum(0)[chosen] >= 0
    bounds = torch.where(upper[:, None], maxima[chosen], minima[chosen]).float()
    share = size[:, chosen].sum(1) / size.sum(1).clamp_min(torch.finfo(torch.float32).tiny)
    scores = (wide[:, chosen] @ bounds) * (scale / share.clamp_min(1e-12).sqrt())[:, None]
    return torch.softmax(scores, 1).mean(0)


def page_rows(pages: Tensor, size: int, length: int) -> Tensor:
    """The tokens of some pages of a head of `length` tokens."""
    rows = (pages[:, None] * size + torch.arange(size, device=pages.device)).flatten()
    return rows[rows < length]
