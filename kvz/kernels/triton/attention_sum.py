"""The attention that keys receive, summed over query rows, of all KV heads of a layer in one launch.

SnapKV's and H2O's score, and KVzip-RMS's, whose squared weights have doubled logits. Partial sums are added in a fixed
order: a sum is the same every time.

For H KV heads of G query heads, n rows each, m keys of D dimensions in b bytes: 2 H G n m D flops on tensor cores, and
an FMA, an exponential and an addition for each product; the causal form visits half of them. It reads (G n + m) H D b
bytes from memory. H2O's block of n = 2048 rows over m = 32768 keys, H=8, G=4, D=128 in bfloat16: 550 Gflop, 84 MB.
SnapKV's window of 32 rows over the same keys: 8.6 Gflop, 67 MB; there memory is the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.triton.key_columns import (
    LOG2E,
    ColumnTiles,
    column_launch,
    column_tiles,
    dense_rows,
    halves,
    load_rows,
    products,
    products_of,
    strides_of,
)
from kvz.kernels.triton.launch import Launch

__all__ = ["column_sum", "configuration", "launches"]


def configuration(dim: int, n: int) -> ColumnTiles:
    """Tiles for heads of `dim`, and `n` query rows a query head."""
    return column_tiles(dim, n)


def column_sum(
    query: Tensor, key: Tensor, lse: Tensor, scale: float, causal: bool = False, weight: Tensor | None = None
) -> Tensor:
    """Softmax weights of each key, added up over group and rows: `[H,m]` float32.

        sum over g, i of  exp(scale * query[h,g,i].key[h,j] - lse[h,g,i]) * weight[h,g,j]

    `query [H,G,n,D]` and `key [H,m,D]` have strides of any size but in the last dimension. `lse [H,G,n]` float32 may
    hold +inf: such a row has no say. `causal` lets row i see keys 0..i only. `weight [H,G,m]`, float32, is
    1 unless given. NaN in a row or a key gives NaN.
    """
    query, key = dense_rows(query), dense_rows(key)
    heads, group, n, dim = query.shape
    m = key.shape[1]
    tiles = configuration(dim, n)
    parts = tiles.parts(heads, group, n, m) if m else 1
    partial = torch.empty(parts, heads, m, dtype=torch.float32, device=query.device)
    if m:
        _column_sum[(triton.cdiv(m, tiles.keys), heads, parts)](
            query,
            key,
            lse.contiguous(),
            None if weight is None else weight.contiguous(),
            partial,
            n,
            m,
            scale * LOG2E.value,
            **strides_of(query, key),
            CAUSAL=causal,
            GROUP=group,
            D=dim,
            PADDED=tiles.padded,
            KEYS=tiles.keys,
            ROWS=tiles.rows,
            STAGES=tiles.stages,
            PRODUCTS=products_of(query.dtype),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return partial[0] if parts == 1 else partial.sum(0)


@triton.jit
def _sum_of_16(weights, KEYS: tl.constexpr, ROWS: tl.constexpr):
    """Sums of every 16th of 32 or 64 rows: `[KEYS,16]`. A thread holds them all, so nothing is exchanged."""
    if ROWS == 64:
        low, high = halves(weights, KEYS, 64)
        weights = low + high
    low, high = halves(weights, KEYS, 32)
    return low + high


@triton.jit
def _column_sum(
    query,
    key,
    lse,
    weight,
    partial,
    n,
    m,
    factor,
    query_head,
    query_group,
    query_row,
    key_head,
    key_row,
    CAUSAL: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    first = tl.program_id(0) * KEYS
    head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    parts = tl.num_programs(2)
    keys = load_rows(key + head * key_head + first.to(tl.int64) * key_row, key_row, m - first, KEYS, D, PADDED)
    columns = first + tl.arange(0, KEYS)
    above = first // ROWS if CAUSAL else 0  # blocks of rows before the first that sees a key
    blocks = tl.maximum(tl.cdiv(n, ROWS) - above, 0)
    units = GROUP * blocks  # blocks of rows, query head after query head
    total = tl.zeros([KEYS, 16], tl.float32)
    for unit in tl.range(units * part // parts, units * (part + 1) // parts, num_stages=STAGES):
        g = unit // blocks
        start = (above + unit - g * blocks) * ROWS
        of_block = query + head * query_head + tl.cast(g, tl.int64) * query_group + tl.cast(start, tl.int64) * query_row
        rows = load_rows(of_block, query_row, n - start, ROWS, D, PADDED)
        found = products(keys, tl.trans(rows), PRODUCTS)
        i = start + tl.arange(0, ROWS)
        bias = tl.load(lse + (head * GROUP + g) * n + i, mask=i < n, other=float("inf")) * LOG2E
        scores = tl.fma(found, factor, -bias[None, :])
        if CAUSAL:
            scores = tl.where(columns[:, None] <= i[None, :], scores, float("-inf"))
        weights = _sum_of_16(tl.exp2(scores), KEYS, ROWS)
        if weight is None:
            total += weights
        else:
            of_keys = tl.load(weight + (head * GROUP + g) * m + columns, mask=columns < m, other=0.0)
            total += weights * of_keys[:, None]
    out = partial + (part.to(tl.int64) * tl.num_programs(1) + head) * m
    tl.store(out + columns, tl.sum(total, 1), mask=columns < m)


def launches() -> Iterator[Launch]:
    """The forms that are launched; H2O's with every head dimension."""
    for dim in (64, 80, 96, 128, 256):
        yield _launch("all keys", dim, 4, 2048, torch.bfloat16)
        yield _launch("causal", dim, 4, 2048, torch.bfloat16)
    yield _launch("causal", 128, 4, 2048, torch.float16)
    yield _launch("causal, few rows", 128, 4, 32, torch.bfloat16)
    yield _launch("window", 128, 4, 32, torch.bfloat16)
    yield _launch("window", 256, 8, 32, torch.bfloat16)
    yield _launch("contribution", 128, 7, 2100, torch.bfloat16)
    yield _launch("contribution", 256, 8, 2100, torch.bfloat16)


def _launch(form: str, dim: int, group: int, n: int, dtype: torch.dtype) -> Launch:
    others: dict[str, object] = {"CAUSAL": form.startswith("causal")}
    if form != "contribution":
        others["weight"] = None
    return column_launch("column_sum", form, _column_sum, configuration(dim, n), dim, group, dtype, others)
