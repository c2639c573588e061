"""Attention in which each row of a batch sees places of its own: windows and tails of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.kernels.attention import attention

__all__ = ["seen_attention"]


def seen_attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of `query [B,H,G,D]` over `keys, values [B,H,N,D]`, of which row b sees `seen [B,N]`.

    Returns the output `[B,H,G,D]` and the log-sum-exp `[B,H,G]`; zero and -inf for a row that sees nothing.
    """
    bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill_(~seen, float("-inf"))
    wide = bias[:, None, None].expand(-1, query.shape[1], -1, -1)
    out, lse = attention(query, keys, values, scale, bias=wide)
    nothing = ~seen.any(1)[:, None, None]
    return out.masked_fill(nothing[..., None], 0), lse.masked_fill(nothing, float("-inf"))
