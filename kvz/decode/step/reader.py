"""How the new tokens of a step read a layer's archive and their tails: all of it, or what an index chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.lowbit import LowBit
from kvz.decode.policies.selection import Selector
from kvz.kernels.decode_plan import DecodePlan, Rows, TailPairs, in_one_workspace, plan_decode
from kvz.kernels.device import multiprocessors
from kvz.kernels.flat_pairs import FlatPairs
from kvz.kernels.page_scores import PageIndex, page_scores
from kvz.kernels.plane_scores import PlaneIndex, plane_scores
from kvz.kernels.ragged_decode import ragged_decode
from kvz.kernels.select_top import select_top
from kvz.kernels.sparse_attention import ChoosableLayer, SparseSpace, sparse_attention

__all__ = ["DenseStep", "SparseStep", "StepReader", "StepRoom", "can_step"]

_CPU_PARTS = 1  # multiprocessors, where there are none


@dataclass(frozen=True)
class StepRoom:
    """What a step is made for: `batch` questions, query heads a KV head, tokens a tail has room for."""

    batch: int
    group: int
    capacity: int
    dtype: torch.dtype


class StepReader(Protocol):
    """Attention of a step's tokens over one full layer."""

    def attend(self, layer: int, query: Tensor, scale: float, tail: TailPairs, seen: Tensor) -> Tensor:
        """Attention of `query [B,Hq,1,D]` over archive and tails, of which `seen [B]` pairs exist: `[B,1,Hq,D]`."""
        ...


class DenseStep:
    """Reads every pair; the archive's once for all questions."""

    def __init__(self, cache: RaggedCache, room: StepRoom) -> None:
        full = [index for index, layer in enumerate(cache.layers) if layer.window is None]
        rows = Rows(room.batch, room.group, 1)
        plans = [_plan(cache.layers[index], rows, room.capacity) for index in full]
        self._plans = dict(zip(full, in_one_workspace(plans), strict=True)) if plans else {}

    def attend(self, layer: int, query: Tensor, scale: float, tail: TailPairs, seen: Tensor) -> Tensor:
        """Attention over everything."""
        return ragged_decode(query, self._plans[layer], scale, tail)[0]


def _plan(layer: RaggedLayer, rows: Rows, capacity: int) -> DecodePlan:
    parts = multiprocessors(layer.keys.device) or _CPU_PARTS
    return plan_decode(FlatPairs(layer.keys, layer.values), layer.bounds, rows, capacity, parts)


@dataclass(frozen=True, eq=False)
class _Choice:
    """One layer of a sparse step: `score` fills its room with the units' scores; the best are attended."""

    score: Callable[[Tensor, float], Tensor]
    counts: Tensor
    layer: ChoosableLayer
    units: Tensor
    space: SparseSpace
    out: Tensor


class SparseStep:
    """Reads the prefix, what the index of a layer chooses, and the tails."""

    def __init__(self, cache: RaggedCache, prefix: int, selector: Selector, room: StepRoom) -> None:
        """`selector` must have been prepared, and be one that chooses by an index: see `can_step`."""
        self._room = room
        self._layers: dict[int, _Choice] = {}
        self._dense = DenseStep(cache, room)
        for index, layer in enumerate(cache.layers):
            longest = max(last - first for first, last in pairwise(layer.bounds))
            if layer.window is None and longest > prefix + selector.budget:
                self._layers[index] = self._choice(layer, prefix, *_INDEXES[type(selector)](selector, index, room))

    def _choice(
        self, layer: RaggedLayer, prefix: int, size: int, takes: Sequence[int],
        counts: Tensor, score: Callable[[Tensor, float], Tensor],
    ) -> _Choice:  # fmt: skip
        room = self._room
        choosable = ChoosableLayer.of(layer, prefix, size, takes)
        space = SparseSpace.of(choosable, room.batch, room.group, room.capacity)
        heads, dim = layer.heads, layer.keys.shape[1]
        out = torch.zeros(room.batch, 1, heads * room.group, dim, dtype=room.dtype, device=layer.keys.device)
        return _Choice(score, counts, choosable, choosable.units(room.batch), space, out)

    def attend(self, layer: int, query: Tensor, scale: float, tail: TailPairs, seen: Tensor) -> Tensor:
        """Attention over what is chosen; over everything in layers that the budget covers."""
        held = self._layers.get(layer)
        if held is None:
            return self._dense.attend(layer, query, scale, tail, seen)
        grouped = query.reshape(query.shape[0], -1, self._room.group, query.shape[3])
        scores = held.score(grouped, scale)
        units = select_top(scores, held.counts, held.layer.takes, held.units)
        return sparse_attention(grouped, held.layer, units, (tail.keys, tail.values), seen, scale, held.space, held.out)


def can_step(selector: Selector) -> bool:
    """Whether a selector chooses by an index that a step can read."""
    return type(selector) in _INDEXES


Index = tuple[int, Sequence[int], Tensor, Callable[[Tensor, float], Tensor]]
"""Tokens a unit, units that each head takes, units that each head has `[H]` int32, and how they are scored."""


def _planes(selector: Selector, layer: int, room: StepRoom) -> Index:
    assert isinstance(selector, LowBit)
    held = selector.layers[layer]
    index = PlaneIndex.of(held.index, held.units.counts, held.rows)
    space = index.space(room.batch, room.group)
    return 1, held.units.takes, index.counts, lambda query, scale: plane_scores(query, index, scale, space)


def _pages(selector: Selector, layer: int, room: StepRoom) -> Index:
    assert isinstance(selector, HSA)
    held = selector.layers[layer]
    index = PageIndex.of(held.pages, [0 if b.whole else b.dims for b in held.budgets])
    space = index.space(room.batch, room.group)
    return held.pages.size, held.units.takes, index.counts, lambda query, scale: page_scores(query, index, scale, space)


_INDEXES: dict[type[Selector], Callable[[Selector, int, StepRoom], Index]] = {LowBit: _planes, HSA: _pages}
