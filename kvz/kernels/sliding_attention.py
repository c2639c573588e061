"""Sliding-window attention of several new tokens, in blocks of rows, so that no row looks far outside its window."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["sliding_attention"]

_BLOCK = 128  # rows at a time, at least; a wide window takes as many as it has


def sliding_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int) -> Tensor:
    """Attention of `query [H,G,n,D]` over `key, value [H,N,D]`, whose last n keys are the rows' own: `[H,G,n,D]`.

    Row i sees the `window` keys that end with its own, or as many as there are.
    """
    heads, group, n, dim = query.shape
    past = key.shape[1] - n
    out = torch.empty_like(query)
    block = max(_BLOCK, window)
    for start in range(0, n, block):
        end = min(start + block, n)
        columns = slice(max(0, past + start - window + 1), past + end)
        i = torch.arange(past + start, past + end, device=query.device)[:, None]
        j = torch.arange(columns.start, columns.stop, device=query.device)
        seen = (j <= i) & (j > i - window)
        keys, values = (t[:, columns].unsqueeze(1).expand(heads, group, -1, dim) for t in (key, value))
        out[:, :, start:end] = scaled_dot_product_attention(
            query[:, :, start:end], keys, values, attn_mask=seen, scale=scale
        )
    return out
