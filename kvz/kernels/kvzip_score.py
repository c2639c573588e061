"""KVzip's score of one chunk of keys: the largest weight any query row gives each key (arXiv 2505.23416).

`column_max_heads` and `largest_logit_heads` do all KV heads of a layer: on a GPU in one launch, else head by head,
which on a CPU keeps what is worked on in its cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.kernels.device import takes_triton

__all__ = ["column_max", "column_max_heads", "largest_logit", "largest_logit_heads"]

_BLOCK_BYTES = 4 << 20  # of scores at a time: fastest measured, and small whatever the context


def column_max_heads(query: Tensor, key: Tensor, lse: Tensor, scale: float, weight: Tensor | None = None) -> Tensor:
    """max over g, i of exp(scale * query[h,g,i].key[h,j] - lse[h,g,i]) * weight[h,g,j] for each key, in float32.

    `query [H,G,n,D]`, `key [H,m,D]`, `lse [H,G,n]` float32 -> `[H,m]`. `weight [H,G,m]` float32 is 0 or more, and 1
    unless given: KVzip+ has the norms of what a query head adds for a key there.
    """
    if takes_triton(query):
        from kvz.kernels.triton import kvzip_score

        with torch.cuda.device(query.device):
            return kvzip_score.column_max(query, key, lse, scale, weight)
    return torch.stack(
        [
            _group_max(query[h].contiguous(), key[h], lse[h], scale, None if weight is None else weight[h])
            for h in range(len(key))
        ]
    )


def largest_logit_heads(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """max over g, i of scale * query[h,g,i].key[h,j] for each key: shapes as in `column_max_heads`."""
    if takes_triton(query):
        from kvz.kernels.triton import kvzip_score

        with torch.cuda.device(query.device):
            return kvzip_score.column_max(query, key, None, scale)
    none = torch.zeros(query.shape[1] * query.shape[2], device=query.device)
    return torch.stack([largest_logit(query[h].flatten(0, 1), key[h], none, scale) for h in range(len(key))])


def _group_max(query: Tensor, key: Tensor, lse: Tensor, scale: float, weight: Tensor | None) -> Tensor:
    if weight is None:
        return column_max(query.flatten(0, 1), key, lse.flatten(), scale)
    of_group = [column_max(query[g], key, lse[g], scale) * weight[g] for g in range(len(query))]
    return torch.stack(of_group).amax(0)


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
