"""The attention that keys receive, summed over query rows: the score of SnapKV and H2O.

`column_sum_heads` does all KV heads of a layer: on a GPU in one launch, else head by head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.kernels.device import takes_triton

__all__ = ["column_sum", "column_sum_heads"]

_BLOCK_BYTES = 4 << 20


def column_sum_heads(
    query: Tensor, key: Tensor, lse: Tensor, scale: float, causal: bool = False, weight: Tensor | None = None
) -> Tensor:
    """sum over g, i of exp(scale * query[h,g,i].key[h,j] - lse[h,g,i]) * weight[h,g,j] for each key, in float32.

    `query [H,G,n,D]`, `key [H,m,D]`, `lse [H,G,n]` float32 -> `[H,m]`. `causal` lets row i see keys 0..i only.
    `weight [H,G,m]` float32 is 1 unless given: KVzip-RMS has squared norms there.
    """
    if takes_triton(query):
        from kvz.kernels.triton import attention_sum

        with torch.cuda.device(query.device):
            return attention_sum.column_sum(query, key, lse, scale, causal, weight)
    return torch.stack(
        [
            _group_sum(query[h].contiguous(), key[h], lse[h], scale, causal, None if weight is None else weight[h])
            for h in range(len(key))
        ]
    )


def _group_sum(query: Tensor, key: Tensor, lse: Tensor, scale: float, causal: bool, weight: Tensor | None) -> Tensor:
    if weight is None:
        return column_sum(query, key, lse, scale, causal)
    of_group = [column_sum(query[g : g + 1], key, lse[g : g + 1], scale, causal) for g in range(len(query))]
    return (torch.stack(of_group) * weight).sum(0)


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
