"""The attention that keys receive, summed over query rows: the score of SnapKV and H2O."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["column_sum"]

_BLOCK_BYTES = 4 << 20


def column_sum(query: Tensor, key: Tensor, lse: Tensor, scale: float, causal: bool = False) -> Tensor:
    """sum over rows i of exp(scale * query[g,i].key[j] - lse[g,i]) for each key j, over the whole group, in float32.

    `query [G,n,D]`, `key [m,D]`, `lse [G,n]` (over all the keys of the softmax, of which these m are a part) -> `[m]`.
    `causal` lets row i see keys 0..i only. Rows are visited in blocks, so no `[n,m]` matrix is ever held.
    """
    group, rows, _ = query.shape
    count = key.shape[0]
    block = max(1, min(rows, _BLOCK_BYTES // (4 * count)))
    keys = key.float().t().contiguous()
    total = torch.zeros(count, device=key.device)
    weights = torch.empty(block, count, device=key.device)
    for g in range(group):
        for start in range(0, rows, block):
            q = query[g, start : start + block].float() * scale
            bias = lse[g, start : start + block, None].neg()
            of_block = torch.addmm(bias, q, keys, out=weights[: q.shape[0]]).exp_()
            if causal:
                of_block.tril_(start)
            total += of_block.sum(0)
    return total
