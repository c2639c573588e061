"""Attention of each token over pairs chosen for it alone."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.kernels.attention import attention

__all__ = ["chosen_attention"]


def chosen_attention(
    query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, valid: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of `query [H,G,n,D]` over `rows [H,n,K]` of flat `keys, values [sum,D]`, where `valid [H,n,K]`.

    Returns the output `[H,G*n,D]` in the query's dtype and the log-sum-exp `[H,G*n]` float32; without a valid row they
    are zero and -inf.
    """
    heads, group, n, dim = query.shape
    count = rows.shape[2]
    flat = rows.reshape(-1)
    near_keys, near_values = (t.index_select(0, flat).view(1, heads * n, count, dim) for t in (keys, values))
    bias = torch.zeros(1, heads * n, 1, count, dtype=query.dtype, device=query.device)
    bias.masked_fill_(~valid.reshape(1, heads * n, 1, count), float("-inf"))
    wide = query.transpose(1, 2).reshape(1, heads * n, group, dim)
    out, lse = attention(wide, near_keys, near_values, scale, bias=bias)
    out, lse = out.view(heads, n, group, dim).transpose(1, 2), lse.view(heads, n, group).transpose(1, 2)
    nothing = ~valid.any(2)[:, None]
    return (
        out.masked_fill(nothing[..., None], 0).reshape(heads, group * n, dim),
        lse.masked_fill(nothing, float("-inf")).reshape(heads, group * n),
    )
