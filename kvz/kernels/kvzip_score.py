"""KVzip's score of one chunk of keys: the largest weight any query row gives each key (arXiv 2505.23416)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["column_max", "largest_logit"]

_BLOCK_BYTES = 4 << 20  # of scores at a time: fastest measured, and small whatever the context


def column_max(query: Tensor, key: Tensor, lse: Tensor, scale: float) -> Tensor:
    """max over rows i of exp(scale * query[i].key[j] - lse[i]) for each key j, in float32.

    `query [R,D]`, `key [m,D]`, `lse [R]` (the log-sum-exp of each row over all the keys of the softmax, of which these
    m are a part) -> `[m]`. exp is monotonic: it is taken of the maximum only.
    """
    return largest_logit(query, key, lse, scale).exp_()


def largest_logit(query: Tensor, key: Tensor, lse: Tensor, scale: float) -> Tensor:
    """The same without exp: max over rows i of scale * query[i].key[j] - lse[i].

    Rows are visited in blocks, so no `[R,m]` matrix is ever held.
    """
    rows, count = query.shape[0], key.shape[0]
    block = max(1, min(rows, _BLOCK_BYTES // (4 * count)))
    keys = key.float().t().contiguous()
    best = torch.full((count,), float("-inf"), device=key.device)
    scores = torch.empty(block, count, device=key.device)
    for start in range(0, rows, block):
        q = query[start : start + block].float() * scale
        bias = lse[start : start + block, None].neg()
        out = torch.addmm(bias, q, keys, out=scores[: q.shape[0]])
        torch.maximum(best, out.amax(0), out=best)
    return best
