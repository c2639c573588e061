"""Each kernel alone: milliseconds, and the bytes it must move over what a copy moves in that time.

A kernel runs many times in one graph, so that the host's launches are not timed. What it reads may lie in the GPU's own
cache after the first time: of a layer that is larger than it, little does; of the chosen pairs of a step, all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvz.bench.gpu.models import ModelGeometry, random_archive
from kvz.bench.gpu.timing import median_ms, recorded
from kvz.cache.ragged import RaggedLayer
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.lowbit import LowBit
from kvz.kernels.attention import attention
from kvz.kernels.attention_sum import column_sum_heads
from kvz.kernels.decode_plan import Rows, TailPairs, in_one_workspace, plan_decode
from kvz.kernels.device import multiprocessors
from kvz.kernels.flat_pairs import FlatPairs
from kvz.kernels.kvzip_score import column_max_heads
from kvz.kernels.page_bounds import page_bounds
from kvz.kernels.page_scores import PageIndex, page_scores
from kvz.kernels.plane_scores import PlaneIndex, plane_scores
from kvz.kernels.ragged_decode import ragged_decode
from kvz.kernels.select_top import select_top
from kvz.kernels.sparse_attention import ChoosableLayer, SparseSpace, sparse_attention

__all__ = ["kernel_rows"]

_PREFIX, _CAPACITY, _TAIL = 30, 512, 64
_CHUNK = 2048
_TIMES = 20  # of each kernel in a graph


@dataclass(frozen=True)
class _Case:
    """A launch, the bytes it must move at least, and the seconds something else takes that it is held against."""

    name: str
    call: Callable[[], object]
    nbytes: float
    against: Callable[[], object] | None = None


def kernel_rows(
    geometry: ModelGeometry, tokens: int, questions: int, ceiling: float, dtype: torch.dtype, device: torch.device
) -> Iterator[dict[str, Any]]:
    """A row for each kernel on one layer of an r = 0.3 archive of `tokens`; `ceiling` in bytes a second."""
    layer = random_archive(_one_layer(geometry), tokens, 0.3, _PREFIX, dtype, device).layers[0]
    for case in (*_step_cases(geometry, layer, questions), *_scoring_cases(geometry, dtype, device)):
        elapsed = _each(case.call, device)
        row: dict[str, Any] = {"model": geometry.name, "tokens": tokens, "kernel": case.name, "ms": elapsed}
        if case.nbytes:
            row["of_copy"] = case.nbytes / (elapsed / 1e3) / ceiling
        if case.against is not None:
            row["times_attention"] = elapsed / _each(case.against, device)
        yield row


def _each(call: Callable[[], object], device: torch.device) -> float:
    return median_ms(recorded(call, device, _TIMES), device, 10) / _TIMES


def _one_layer(geometry: ModelGeometry) -> ModelGeometry:
    values = {name: getattr(geometry, name) for name in geometry.__dataclass_fields__} | {"layers": 1}
    return ModelGeometry(**values)


def _step_cases(geometry: ModelGeometry, layer: RaggedLayer, questions: int) -> Iterator[_Case]:
    dtype, device = layer.keys.dtype, layer.keys.device
    parts = multiprocessors(device) or 1
    scale = geometry.head_dim**-0.5
    pair_bytes = geometry.pair_bytes(dtype)
    for batch in (1, questions):
        size = (batch, geometry.query_heads, 1, geometry.head_dim)
        query = torch.randn(size, dtype=dtype, device=device)
        tail = _tail(geometry, batch, dtype, device)
        plan = plan_decode(
            FlatPairs(layer.keys, layer.values), layer.bounds, Rows(batch, geometry.group, 1), _CAPACITY, parts
        )
        [planned] = in_one_workspace([plan])
        yield _Case(
            f"ragged_attention, {batch} questions",
            lambda q=query, p=planned, t=tail: ragged_decode(q, p, scale, t),  # type: ignore[misc]
            layer.bounds[-1] * pair_bytes,
        )
    yield from _sparse_cases(geometry, layer, scale)
    yield _Case("page_bounds", lambda: page_bounds(layer, _PREFIX, 4), layer.bounds[-1] * pair_bytes * 0.75)


def _sparse_cases(geometry: ModelGeometry, layer: RaggedLayer, scale: float) -> Iterator[_Case]:
    dtype, device = layer.keys.dtype, layer.keys.device
    query = torch.randn(1, geometry.kv_heads, geometry.group, geometry.head_dim, dtype=dtype, device=device)
    tail = _tail(geometry, 1, dtype, device)
    pair_bytes = geometry.pair_bytes(dtype)
    out = torch.zeros(1, 1, geometry.query_heads, geometry.head_dim, dtype=dtype, device=device)
    for budget in (256, 1024):
        hsa, lowbit = HSA(budget), LowBit(budget)
        for selector in (hsa, lowbit):
            selector.prepare_layer(0, layer, _PREFIX)
        paged, planed = hsa.layers[0], lowbit.layers[0]
        pages = PageIndex.of(paged.pages, [0 if b.whole else b.dims for b in paged.budgets])
        planes = PlaneIndex.of(planed.index, planed.units.counts, planed.rows)
        for name, units, size, counts, score, moved in (
            ("page", paged.units, paged.pages.size, pages.counts, _page_scorer(query, pages, scale), paged.read),
            ("plane", planed.units, 1, planes.counts, _plane_scorer(query, planes, scale), planed.read),
        ):
            taken = sum(units.takes) * size
            yield _Case(f"{name}_scores @{budget}", score, max(0.0, moved.nbytes - taken * pair_bytes))
            choosable = ChoosableLayer.of(layer, _PREFIX, size, units.takes)
            space = SparseSpace.of(choosable, 1, geometry.group, _CAPACITY)
            room, scores = choosable.units(1), score()
            yield _Case(
                f"select_top of {name}s @{budget}",
                lambda s=scores, c=counts, x=choosable, r=room: select_top(s, c, x.takes, r),  # type: ignore[misc]
                scores.numel() * 4,
            )
            yield _Case(
                f"sparse_attention over {name}s @{budget}",
                lambda x=choosable, r=room, s=space: sparse_attention(  # type: ignore[misc]
                    query, x, r, (tail.keys, tail.values), tail.past, scale, s, out
                ),
                (taken + geometry.kv_heads * (_PREFIX + _TAIL)) * pair_bytes,
            )


def _page_scorer(query: Tensor, index: PageIndex, scale: float) -> Callable[[], Tensor]:
    space = index.space(1, query.shape[2])
    return lambda: page_scores(query, index, scale, space)


def _plane_scorer(query: Tensor, index: PlaneIndex, scale: float) -> Callable[[], Tensor]:
    space = index.space(1, query.shape[2])
    return lambda: plane_scores(query, index, scale, space)


def _scoring_cases(geometry: ModelGeometry, dtype: torch.dtype, device: torch.device) -> Iterator[_Case]:
    """Scoring a chunk, held against the attention of the same rows over chunk and own keys."""
    chunk = _CHUNK if device.type == "cuda" else 64
    size = (geometry.kv_heads, geometry.group, chunk, geometry.head_dim)
    query = torch.randn(size, dtype=dtype, device=device)
    key = torch.randn(geometry.kv_heads, chunk, geometry.head_dim, dtype=dtype, device=device)
    lse = torch.full(size[:3], 10.0, device=device)
    scale = geometry.head_dim**-0.5
    rows = query.view(1, geometry.query_heads, chunk, geometry.head_dim)
    wide = key.repeat_interleave(geometry.group, 0)[None].repeat(1, 1, 2, 1)

    def forward() -> object:
        return attention(rows, wide, wide, scale)

    moved = (query.numel() + key.numel()) * dtype.itemsize
    yield _Case("kvzip_score", lambda: column_max_heads(query, key, lse, scale), moved, forward)
    yield _Case("snapkv_score", lambda: column_sum_heads(query[:, :, -32:], key, lse[:, :, -32:], scale), 0)


def _tail(geometry: ModelGeometry, batch: int, dtype: torch.dtype, device: torch.device) -> TailPairs:
    size = (batch, geometry.kv_heads, _CAPACITY, geometry.head_dim)
    keys, values = (torch.randn(size, dtype=dtype, device=device) for _ in range(2))
    return TailPairs(keys, values, torch.full((batch,), _TAIL, dtype=torch.int32, device=device))
