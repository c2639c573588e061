"""Every kernel against its plain torch form in float32, on small ragged layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kvz.bench.gpu.models import ModelGeometry, random_archive
from kvz.cache.ragged import RaggedLayer
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.lowbit import LowBit
from kvz.kernels.attention_sum import column_sum_heads
from kvz.kernels.decode_plan import Rows, TailPairs, in_one_workspace, plan_decode
from kvz.kernels.flat_pairs import FlatPairs
from kvz.kernels.kvzip_score import column_max_heads, largest_logit_heads
from kvz.kernels.page_bounds import page_bounds, plain_page_bounds
from kvz.kernels.page_scores import PageIndex, page_scores, plain_page_scores
from kvz.kernels.plane_scores import PlaneIndex, plain_plane_scores, plane_scores
from kvz.kernels.ragged_decode import plain_ragged_decode, ragged_decode
from kvz.kernels.select_top import plain_select_top, select_top
from kvz.kernels.sparse_attention import ChoosableLayer, SparseSpace, plain_sparse_attention, sparse_attention

__all__ = ["parity_rows"]

_PREFIX = 5
_SCORES = 1e-3  # of the largest: products are exact, and sums in float32
_CASES = [(d, g) for d in (64, 80, 96, 128, 256) for g in (1, 4, 7)]


def parity_rows(
    device: torch.device, dtypes: tuple[torch.dtype, ...], cases: Sequence[tuple[int, int]] = _CASES
) -> Iterator[dict[str, Any]]:
    """A row for each kernel, dtype, head dimension and group: the largest error, and whether it is small enough."""
    for dtype in dtypes:
        for dim, group in cases:
            geometry = ModelGeometry("small", 1, 4 * group, 4, dim, 0, 0, 0)
            layer = random_archive(geometry, 700, 0.4, _PREFIX, dtype, device).layers[0]
            for name, error, allowed in _errors(geometry, layer):
                row = {"kernel": name, "dtype": str(dtype).removeprefix("torch."), "dim": dim, "group": group}
                yield row | {"error": error, "passed": error <= allowed}


def _errors(geometry: ModelGeometry, layer: RaggedLayer) -> Iterator[tuple[str, float, float]]:
    """Kernel, largest absolute error to the plain form on the same 16-bit inputs in float32, and what is allowed."""
    dtype, device = layer.keys.dtype, layer.keys.device
    rounding = 4 * torch.finfo(dtype).eps
    wide = RaggedLayer(layer.keys.float(), layer.values.float(), layer.offsets, layer.positions)
    scale, batch = geometry.head_dim**-0.5, 3
    query = _query(geometry, batch, dtype, device)
    size = (batch, geometry.kv_heads, 64, geometry.head_dim)
    keys, values = (torch.randn(size, dtype=dtype, device=device) for _ in range(2))
    past = torch.tensor([0, 17, 63], dtype=torch.int32, device=device)
    tail, wide_tail = TailPairs(keys, values, past), TailPairs(keys.float(), values.float(), past)
    plans = [
        in_one_workspace([plan_decode(FlatPairs(x.keys, x.values), x.bounds, Rows(batch, geometry.group, 1), 64, 108)])[
            0
        ]
        for x in (layer, wide)
    ]
    got = ragged_decode(query, plans[0], scale, tail)[0].float()
    yield "ragged_attention", _apart(got, plain_ragged_decode(query.float(), plans[1], scale, wide_tail)[0]), rounding

    grouped = query.view(batch, geometry.kv_heads, geometry.group, geometry.head_dim)
    hsa, lowbit = HSA(64), LowBit(64)
    for selector in (hsa, lowbit):
        selector.prepare_layer(0, layer, _PREFIX)
    paged, planed = hsa.layers[0], lowbit.layers[0]
    pages = PageIndex.of(paged.pages, [0 if b.whole else b.dims for b in paged.budgets])
    planes = PlaneIndex.of(planed.index, planed.units.counts, planed.rows)
    rooms = [pages.space(batch, geometry.group) for _ in range(2)]
    own, plain = page_scores(grouped, pages, scale, rooms[0]), plain_page_scores(grouped, pages, scale, rooms[1])
    yield "page_scores", _apart(own, plain) / float(plain.max()), _SCORES
    rooms = [planes.space(batch, geometry.group) for _ in range(2)]
    own, plain = plane_scores(grouped, planes, scale, rooms[0]), plain_plane_scores(grouped, planes, scale, rooms[1])
    yield "plane_scores", _apart(own, plain) / float(plain.max()), _SCORES

    choosable = ChoosableLayer.of(layer, _PREFIX, 1, planed.units.takes)
    chosen = [
        select(plain, planes.counts, choosable.takes, choosable.units(batch))
        for select in (select_top, plain_select_top)
    ]
    yield "select_top", _apart(*(_scores_of(plain, units) for units in chosen)), 0.0
    wide_choosable = ChoosableLayer.of(wide, _PREFIX, 1, planed.units.takes)
    outs = []
    for x, attend, kind in (
        (choosable, sparse_attention, dtype),
        (wide_choosable, plain_sparse_attention, torch.float32),
    ):
        space = SparseSpace.of(x, batch, geometry.group, 64)
        out = torch.zeros(batch, 1, geometry.query_heads, geometry.head_dim, dtype=kind, device=device)
        pairs = keys.to(kind), values.to(kind)
        outs.append(attend(grouped.to(kind), x, chosen[1], pairs, past, scale, space, out).float())
    yield "sparse_attention", _apart(*outs), rounding
    made = page_bounds(layer, _PREFIX, 4).extremes.float(), plain_page_bounds(layer, _PREFIX, 4).extremes.float()
    yield "page_bounds", _apart(*made), 0.0
    yield from _scoring_errors(geometry, dtype, device, scale, rounding)


def _query(geometry: ModelGeometry, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Queries `[B,Hq,1,D]` whose dimensions differ in size, so that which are the largest is no matter of rounding."""
    dim = geometry.head_dim
    sizes = torch.stack([torch.randperm(dim) + 1 for _ in range(batch * geometry.kv_heads)]) * 3 / dim
    sizes = sizes.view(batch, geometry.kv_heads, 1, dim).expand(-1, -1, geometry.group, -1)
    signs = torch.randint(0, 2, sizes.shape) * 2 - 1
    return (sizes * signs).reshape(batch, geometry.query_heads, 1, dim).to(device, dtype)


def _scoring_errors(
    geometry: ModelGeometry, dtype: torch.dtype, device: torch.device, scale: float, rounding: float
) -> Iterator[tuple[str, float, float]]:
    query = torch.randn(geometry.kv_heads, geometry.group, 333, geometry.head_dim, dtype=dtype, device=device)
    key = torch.randn(geometry.kv_heads, 217, geometry.head_dim, dtype=dtype, device=device)
    lse = torch.logsumexp(query.float() @ key.float()[:, None].transpose(2, 3) * scale, -1)
    plain = query.float().cpu(), key.float().cpu(), lse.cpu()
    got = column_max_heads(query, key, lse, scale).cpu()
    yield "kvzip_score", _apart(got, column_max_heads(*plain, scale)), rounding
    got = largest_logit_heads(query, key, scale).cpu()
    yield "kvzip_score, logits", _apart(got, largest_logit_heads(*plain[:2], scale)), 8 * rounding
    got = column_sum_heads(query, key, lse, scale).cpu()
    expected = column_sum_heads(*plain, scale)
    yield "snapkv_score", _apart(got, expected) / float(expected.max()), rounding


def _scores_of(scores: Tensor, units: Tensor) -> Tensor:
    """What was chosen, by its scores: which of equal ones is of no matter."""
    taken = scores.gather(2, units.long().clamp_min(0)).masked_fill(units < 0, -1)
    return taken.sort(2, descending=True).values


def _apart(got: Tensor, expected: Tensor) -> float:
    """The largest absolute difference; NaN counts as infinite."""
    apart = (got - expected).abs()
    return float("inf") if bool(torch.isnan(apart).any()) else float(apart.max())
