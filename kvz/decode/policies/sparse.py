"""Sparse decoding: the question attends everything, generated tokens a selection of each head's context.

Tail and prefix are always attended exactly, outside the selection. Heads that the budget covers are attended whole.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.decode.policies.dense import DensePolicy
from kvz.decode.policies.selection import Head, Selector
from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts

__all__ = ["SparsePolicy"]


class SparsePolicy(DensePolicy):
    """A pair store that lets a `selector` choose what each new token attends; it must have been prepared.

    `pairs_read` has the reading that it takes to choose among its pairs.
    """

    def __init__(self, cache: RaggedCache, tail: Tail, prefix: int, selector: Selector) -> None:
        super().__init__(cache, tail)
        self._prefix = prefix
        self._selector = selector
        self._covered = [_covered(layer.bounds, prefix + selector.budget) for layer in cache.layers]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of n new tokens: dense for a question, or where the budget covers the layer's longest head."""
        dense = self._cache.layers[layer].window is not None or self._covered[layer]
        if query.shape[2] > 1 or dense:
            return super().attend(layer, query, key, value, scale)
        self.steps += layer == 0
        heads, _, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, 1, dim)
        tail = self._over_tail(layer, grouped, key, value, scale)
        outs = [
            merge_parts([(tail[0][head], tail[1][head]), self._of_head(layer, head, grouped[head, :, 0], scale)])[0]
            for head in range(heads)
        ]
        return torch.stack(outs).to(query.dtype).view(1, 1, -1, dim)

    def _of_head(self, layer: int, index: int, query: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Attention of a group over its prefix and what is chosen of its context: `[G,D]`, `[G]`."""
        stored = self._cache.layers[layer]
        first, last = stored.bounds[index], stored.bounds[index + 1]
        begin = first + self._prefix
        if last - begin <= self._selector.budget:
            self.pairs_read += last - first
            return _attend(query, stored.keys[first:last], stored.values[first:last], scale)
        keys, values = stored.keys[begin:last], stored.values[begin:last]
        chosen = self._selector.choose(Head(layer, index, query, keys, scale))
        self.pairs_read += self._prefix + len(chosen.rows) + chosen.read
        out, lse = _attend(query, keys[chosen.rows], values[chosen.rows], scale)
        if chosen.coverage is not None:
            share = chosen.coverage.clamp(1e-6, 1)
            out = share[:, None] * out.float() + (1 - share)[:, None] * values.float().mean(0)
            lse = lse - share.log()
        if not self._prefix:
            return out, lse
        around = _attend(query, stored.keys[first:begin], stored.values[first:begin], scale)
        return merge_parts([(out, lse), around])


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    out, lse = grouped_attention(query[None, :, None], keys[None], values[None], scale)
    return out[0], lse[0]


def _covered(bounds: tuple[int, ...], most: int) -> bool:
    return all(last - first <= most for first, last in pairwise(bounds))
