"""SparQ (arXiv 2312.04985): approximate scores from the dimensions where the query is largest choose tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.decode.policies.selection import Head, Selection, Selector

__all__ = ["SparQ", "sparq_scores"]


class SparQ(Selector):
    """Half the budget reads some dimensions of every key, half the chosen tokens; the newest are among them.

    The mass that approximate scores leave on other tokens falls on the head's mean value.
    """

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.local = budget // 8  # the newest context tokens, always chosen

    def prepare(self, cache: RaggedCache, prefix: int) -> None:
        """Nothing: scores come from the keys themselves."""

    def choose(self, head: Head) -> Selection:
        length, dim = head.keys.shape
        dims = max(1, min(dim, dim * self.budget // length))
        scores = sparq_scores(head.query, head.keys, dims, head.scale)
        ranked = scores.mean(0)
        ranked[length - self.local :] = torch.inf
        rows = ranked.topk(min(length, max(1, self.budget // 2))).indices
        return Selection(rows, length * dims / (2 * dim), scores[:, rows].sum(1))


def sparq_scores(query: Tensor, keys: Tensor, dims: int, scale: float) -> Tensor:
    """Approximate attention weights of each query head, `[G,L]` float32, from `dims` dimensions of `keys [L,D]`."""
    wide = query.float()
    size = wide.abs()
    chosen = size.sum(0).topk(dims).indices
    share = size[:, chosen].sum(1) / size.sum(1).clamp_min(torch.finfo(torch.float32).tiny)
    scores = (wide[:, chosen] @ keys[:, chosen].float().t()) * (scale / share.clamp_min(1e-12).sqrt())[:, None]
    return torch.softmax(scores, 1)
