"""Dense: every token attends all surviving pairs and the whole tail."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts
from kvz.kernels.ragged_attention import RaggedPlan, plan_ragged, ragged_attention
from kvz.kernels.sliding_attention import sliding_attention

__all__ = ["DensePolicy"]


class DensePolicy:
    """A pair store over an archive's ragged cache and a tail, merged by log-sum-exp. The cache is only read.

    `pairs_read` counts what generated tokens read of the archive, in pairs, and `steps` those tokens.
    """

    def __init__(self, cache: RaggedCache, tail: Tail) -> None:
        self.steps = 0
        self.pairs_read = 0.0
        self._cache = cache
        self._tail = tail
        self._plans: dict[tuple[int, int], RaggedPlan] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of n new tokens over archive and tail: `query [1,Hq,n,D]`, `key, value [1,H,n,D]`."""
        heads, n, dim = key.shape[1:]
        if n == 1:
            self.steps += layer == 0
            self.pairs_read += self._cache.layers[layer].bounds[-1]
        return self._dense(layer, query.reshape(heads, -1, n, dim), key, value, scale)

    def _dense(self, layer: int, grouped: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The same without counting, for `grouped [H,G,n,D]`."""
        heads, _, n, dim = grouped.shape
        if self._cache.layers[layer].window is not None:
            return self._over_window(layer, grouped, key, value, scale)
        tail = self._over_tail(layer, grouped, key, value, scale)
        flat = grouped.reshape(heads, -1, dim)
        out = ragged_attention(flat, self._plan(layer, flat.shape[1]), scale, tail)
        return out.to(grouped.dtype).view(1, -1, n, dim).transpose(1, 2)

    def _over_window(self, layer: int, grouped: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of a sliding layer: over what its window still sees of the archive and of the tail."""
        heads, group, n, dim = grouped.shape
        stored = self._cache.layers[layer]
        window = stored.window
        assert window is not None
        past = self._tail.length
        keys, values = (t[0] for t in self._tail.write(layer, key, value))
        old_keys, old_values = (t.view(heads, len(t) // heads, dim) for t in (stored.keys, stored.values))
        first = max(0, old_keys.shape[1] - max(0, window - 1 - past))
        begin = max(0, past - (window - 1))
        old = old_keys[:, first:], old_values[:, first:]
        new = keys[:, begin:], values[:, begin:]
        if n == 1:
            parts = [grouped_attention(grouped, k, v, scale) for k, v in (old, new) if k.shape[1]]
            out = merge_parts(parts)[0]
        else:
            joined = [torch.cat(pair, 1) for pair in zip(old, new, strict=True)]
            out = sliding_attention(grouped, joined[0], joined[1], scale, window)
        return out.reshape(1, heads * group, n, dim).transpose(1, 2)

    def _plan(self, layer: int, rows: int) -> RaggedPlan:
        """The plan for so many query rows a head; a decode step, which has one row a query head, makes it once."""
        plan = self._plans.get((layer, rows))
        if plan is None:
            pruned = self._cache.layers[layer]
            plan = plan_ragged(pruned.keys, pruned.values, pruned.bounds, rows)
            self._plans[layer, rows] = plan
        return plan

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
