"""Dense: a token attends every pair of the archive."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.kernels.ragged_attention import (
    MOST_SPLIT_ROWS,
    RaggedPlan,
    plan_ragged,
    ragged_attention,
    ragged_attention_with_lse,
)

__all__ = ["ArchiveReader", "DenseReader"]

Part = tuple[Tensor, Tensor]
"""Attention over some pairs: output `[H,G*n,D]` and log-sum-exp `[H,G*n]`."""


class ArchiveReader(Protocol):
    """How new tokens attend the full layers of an archive."""

    def attend(self, layer: int, query: Tensor, scale: float, beside: Part) -> Tensor:
        """Attention of `query [H,G,n,D]` over a layer's pairs, merged with that over other pairs: `[H,G*n,D]`."""
        ...

    def read(self, layer: int) -> float:
        """Pairs that a token reads of a layer, with what it takes to choose them."""
        ...


class DenseReader:
    """Reads every pair; how a layer is cut into parts is planned once for each number of rows."""

    def __init__(self, cache: RaggedCache) -> None:
        self._cache = cache
        self._plans: dict[tuple[int, int], RaggedPlan] = {}

    def attend(self, layer: int, query: Tensor, scale: float, beside: Part) -> Tensor:
        """Attention over all pairs of a layer."""
        heads, _, _, dim = query.shape
        flat = query.reshape(heads, -1, dim)
        return ragged_attention(flat, self._plan(layer, flat.shape[1]), scale, beside)

    def attend_part(self, layer: int, query: Tensor, scale: float, beside: Part) -> Part:
        """The same with the log-sum-exp of all pairs, those beside the archive among them."""
        heads, _, _, dim = query.shape
        flat = query.reshape(heads, -1, dim)
        return ragged_attention_with_lse(flat, self._plan(layer, flat.shape[1]), scale, beside)

    def read(self, layer: int) -> float:
        """All of them."""
        return self._cache.layers[layer].bounds[-1]

    def _plan(self, layer: int, rows: int) -> RaggedPlan:
        few = min(rows, MOST_SPLIT_ROWS + 1)  # above it, all are planned alike
        plan = self._plans.get((layer, few))
        if plan is None:
            pruned = self._cache.layers[layer]
            plan = plan_ragged(pruned.keys, pruned.values, pruned.bounds, few)
            self._plans[layer, few] = plan
        return plan
