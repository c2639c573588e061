"""Dense: a token attends every pair of the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.decode.beside import Beside, Part
from kvz.decode.policies.traffic import Traffic, whole
from kvz.kernels.decode_step import MOST_DENSE_ROWS, ragged_step
from kvz.kernels.ragged_attention import (
    MOST_SPLIT_ROWS,
    RaggedPlan,
    plan_ragged,
    ragged_attention,
    ragged_attention_with_lse,
)

if TYPE_CHECKING:
    from kvz.kernels.cpu.ragged_step import RaggedStep

__all__ = ["ArchiveReader", "DenseReader"]


class ArchiveReader(Protocol):
    """How new tokens attend the full layers of an archive."""

    def attend(self, layer: int, query: Tensor, scale: float, beside: Beside) -> Tensor:
        """Attention of `query [H,G,n,D]` over a layer's pairs, merged with that over other pairs: `[H,G*n,D]`."""
        ...

    def read(self, layer: int) -> Traffic:
        """What a token reads of a layer, with what it takes to choose it."""
        ...

    @property
    def held_nbytes(self) -> int:
        """Bytes of the tensors that it holds by now beside the archive: what it chooses by, and copies of pairs."""
        ...


class DenseReader:
    """Reads every pair; how a layer is cut into parts is planned once for each number of rows."""

    def __init__(self, cache: RaggedCache) -> None:
        self._cache = cache
        self._plans: dict[tuple[int, int], RaggedPlan] = {}
        self._steps: dict[int, RaggedStep | None] = {}

    def attend(self, layer: int, query: Tensor, scale: float, beside: Beside) -> Tensor:
        """Attention over all pairs of a layer."""
        heads, group, n, dim = query.shape
        if beside.tails is not None and group <= MOST_DENSE_ROWS and (step := self._step(layer)):
            most, by_tokens = MOST_DENSE_ROWS // group, query.transpose(1, 2)
            outs = [
                step.attend(by_tokens[:, first : first + most], scale, beside.tails.part(first, first + most))
                for first in range(0, n, most)
            ]
            out = outs[0] if len(outs) == 1 else torch.cat(outs, 1)
            return out.transpose(1, 2).reshape(heads, -1, dim)
        flat = query.reshape(heads, -1, dim)
        return ragged_attention(flat, self._plan(layer, flat.shape[1]), scale, beside.part())

    def attend_part(self, layer: int, query: Tensor, scale: float, beside: Beside) -> Part:
        """The same with the log-sum-exp of all pairs, those beside the archive among them."""
        heads, _, _, dim = query.shape
        flat = query.reshape(heads, -1, dim)
        return ragged_attention_with_lse(flat, self._plan(layer, flat.shape[1]), scale, beside.part())

    def read(self, layer: int) -> Traffic:
        """All of it."""
        return whole(self._cache.layers[layer])

    @property
    def held_nbytes(self) -> int:
        """None: parts of a layer are views."""
        return 0

    def _step(self, layer: int) -> RaggedStep | None:
        if layer not in self._steps:
            stored = self._cache.layers[layer]
            self._steps[layer] = ragged_step(stored.keys, stored.values, stored.bounds)
        return self._steps[layer]

    def _plan(self, layer: int, rows: int) -> RaggedPlan:
        few = min(rows, MOST_SPLIT_ROWS + 1)  # above it, all are planned alike
        plan = self._plans.get((layer, few))
        if plan is None:
            pruned = self._cache.layers[layer]
            plan = plan_ragged(pruned.keys, pruned.values, pruned.bounds, few)
            self._plans[layer, few] = plan
        return plan
