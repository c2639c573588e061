"""Dense: every token attends all surviving pairs and the whole tail."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts, merge_stacked
from kvz.kernels.ragged_attention import parts_needed, ragged_attention

__all__ = ["DensePolicy"]


class DensePolicy:
    """A pair store over an archive's ragged cache and a tail, merged by log-sum-exp. The cache is only read."""

    def __init__(self, cache: RaggedCache, tail: Tail) -> None:
        self._cache = cache
        self._tail = tail

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of n new tokens over archive and tail: `query [1,Hq,n,D]`, `key, value [1,H,n,D]`."""
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        rows = grouped.shape[1] * n
        parts = parts_needed(query.device, rows)
        outs = torch.zeros(heads, parts + 1, rows, dim, device=query.device)
        lses = torch.full((heads, parts + 1, rows), float("-inf"), device=query.device)
        pruned = self._cache.layers[layer]
        flat = grouped.reshape(heads, rows, dim)
        ragged_attention(flat, pruned.keys, pruned.values, pruned.bounds, scale, outs[:, :parts], lses[:, :parts])
        outs[:, parts], lses[:, parts] = self._over_tail(layer, grouped, key, value, scale)
        out = merge_stacked(outs, lses).to(query.dtype)
        return out.view(1, -1, n, dim).transpose(1, 2)

    def _over_tail(
        self, layer: int, grouped: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attention over the tail's past and the new tokens themselves, causal: `[H,G*n,D]`, `[H,G*n]`."""
        past, n = self._tail.length, key.shape[2]
        keys, values = self._tail.write(layer, key, value)
        if n == 1:
            return grouped_attention(grouped, keys[0], values[0], scale)
        own = grouped_attention(grouped, keys[0, :, past:], values[0, :, past:], scale, causal=True)
        if not past:
            return own
        return merge_parts([own, grouped_attention(grouped, keys[0, :, :past], values[0, :, :past], scale)])
