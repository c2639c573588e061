"""What kvz is compared with: a full KV cache, one tensor a layer, attended by torch's own kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvz.bench.gpu.models import ModelGeometry
from kvz.kernels.decode_plan import TailPairs

__all__ = ["FullStep"]


class FullStep:
    """A step reader over `tokens` pairs of every head; the tail is left out, which is to its advantage.

    `repeat` copies the KV heads for each query head first, as many serving codes and RocketKV's baseline do; otherwise
    torch's kernels are told of the groups.
    """

    def __init__(
        self, geometry: ModelGeometry, batch: int, tokens: int, dtype: torch.dtype, device: torch.device, repeat: bool
    ) -> None:
        size = (batch, geometry.kv_heads, tokens, geometry.head_dim)
        self._keys = [torch.randn(size, dtype=dtype, device=device) for _ in range(geometry.layers)]
        self._values = [torch.randn(size, dtype=dtype, device=device) for _ in range(geometry.layers)]
        self._group = geometry.group if repeat else 1

    def attend(self, layer: int, query: Tensor, scale: float, tail: TailPairs, seen: Tensor) -> Tensor:
        """Attention of `query [B,Hq,1,D]` over everything: `[B,1,Hq,D]`."""
        keys, values = self._keys[layer], self._values[layer]
        if self._group > 1:
            keys, values = (t.repeat_interleave(self._group, 1) for t in (keys, values))
        out = scaled_dot_product_attention(query, keys, values, scale=scale, enable_gqa=self._group == 1)
        return out.transpose(1, 2)
