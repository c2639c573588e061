"""Sparse decoding: new tokens attend the prefix, the tail and a few chosen pairs of each head."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.decode.policies.dense import DensePolicy
from kvz.decode.policies.selection import Selection, Selector
from kvz.kernels.attention import grouped_attention
from kvz.kernels.chosen_attention import chosen_attention
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
        self._prefixes: dict[int, tuple[Tensor, Tensor]] = {}
        self._means: dict[int, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of n new tokens: dense for a question, or where the budget covers the layer's longest head."""
        if query.shape[2] > 1 or self._reads_all(layer):
            return super().attend(layer, query, key, value, scale)
        return self.attend_chosen(layer, query, key, value, scale)

    def attend_chosen(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The same for n tokens of an answer, each with a selection of its own."""
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        self.steps += n * (layer == 0)
        if self._reads_all(layer):
            self.pairs_read += n * self._cache.layers[layer].bounds[-1]
            return self._dense(layer, grouped, key, value, scale)
        self.pairs_read += n * (heads * self._prefix + self._selector.read(layer))
        parts = [self._over_tail(layer, grouped, key, value, scale)]
        if self._prefix:
            parts.append(grouped_attention(grouped, *self._prefix_of(layer), scale))
        selection = self._selector.choose(layer, grouped.transpose(1, 2).float(), scale)
        parts.append(self._over_chosen(layer, grouped, selection, scale))
        out = merge_parts(parts)[0]
        return out.view(1, -1, n, dim).transpose(1, 2)

    def _over_chosen(self, layer: int, grouped: Tensor, selection: Selection, scale: float) -> tuple[Tensor, Tensor]:
        """Attention over what was chosen of the context: `[H,G*n,D]`, `[H,G*n]`."""
        stored = self._cache.layers[layer]
        out, lse = chosen_attention(grouped, stored.keys, stored.values, selection.rows, selection.valid, scale)
        if selection.coverage is None:
            return out, lse
        share = selection.coverage.transpose(1, 2).flatten(1).clamp(1e-6, 1)
        rest = (1 - share)[..., None] * self._mean_of(layer)[:, None]
        return share[..., None] * out.float() + rest, lse - share.log()

    def _reads_all(self, layer: int) -> bool:
        return self._cache.layers[layer].window is not None or self._covered[layer]

    def _prefix_of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the prefix, `[H,P,D]` each, gathered once."""
        if layer not in self._prefixes:
            stored = self._cache.layers[layer]
            begins = torch.tensor(stored.bounds[:-1], device=stored.keys.device)
            rows = begins[:, None] + torch.arange(self._prefix, device=stored.keys.device)
            self._prefixes[layer] = stored.keys[rows], stored.values[rows]
        return self._prefixes[layer]

    def _mean_of(self, layer: int) -> Tensor:
        """The mean value of each head's context, `[H,D]` float32, computed once."""
        if layer not in self._means:
            stored = self._cache.layers[layer]
            parts = [stored.values[a + self._prefix : b].float() for a, b in pairwise(stored.bounds)]
            self._means[layer] = torch.stack([part.sum(0) / max(1, len(part)) for part in parts])
        return self._means[layer]


def _covered(bounds: tuple[int, ...], most: int) -> bool:
    return all(last - first <= most for first, last in pairwise(bounds))
