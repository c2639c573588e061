"""Dense: every token attends all surviving pairs and the whole tail."""

from __future__ import annotations

from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts
from kvz.kernels.ragged_attention import RaggedPlan, plan_ragged, ragged_attention

__all__ = ["DensePolicy"]


class DensePolicy:
    """A pair store over an archive's ragged cache and a tail, merged by log-sum-exp. The cache is only read."""

    def __init__(self, cache: RaggedCache, tail: Tail) -> None:
        self._cache = cache
        self._tail = tail
        self._plans: dict[tuple[int, int], RaggedPlan] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of n new tokens over archive and tail: `query [1,Hq,n,D]`, `key, value [1,H,n,D]`."""
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        tail = self._over_tail(layer, grouped, key, value, scale)
        flat = grouped.reshape(heads, -1, dim)
        out = ragged_attention(flat, self._plan(layer, flat.shape[1]), scale, tail)
        return out.to(query.dtype).view(1, -1, n, dim).transpose(1, 2)

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
