"""KVzip's scores of all KV heads of a layer in one launch (arXiv 2505.23416): the largest weight each key is given.

The second of two passes: log-sum-exps of the rows are there already, from attention. Exact: no weight
is left out, and none but the largest is exponentiated.

For H KV heads of G query heads, n rows each, m keys of D dimensions in b bytes: 2 H G n m D flops on tensor cores, and
an FMA and a maximum for each product. It reads (G n + m) H D b bytes from memory; from cache the queries once for each
128 keys, and the keys once for each part; it writes parts * H m floats. H=8, G=4, n=2100, m=2048, D=128 in bfloat16:
35 Gflop, 21 MB from memory, 0.31 GB from cache.
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

__all__ = ["column_max", "configuration", "launches"]


def configuration(dim: int, n: int) -> ColumnTiles:
    """Tiles for heads of `dim`, and `n` query rows a query head."""
    return column_tiles(dim, n)


def column_max(query: Tensor, key: Tensor, lse: Tensor | None, scale: float, weight: Tensor | None = None) -> Tensor:
    """Largest softmax weight of each key over group and rows: `[H,m]` float32.

        max over g, i of  exp(scale * query[h,g,i].key[h,j] - lse[h,g,i]) * weight[h,g,j]

    `query [H,G,n,D]` and `key [H,m,D]` have strides of any size but in the last dimension. `lse [H,G,n]` float32 may
    hold +inf: such a row has no say. Without it the scores are logits, and no exponential is taken. `weight [H,G,m]`
    float32, 0 or more, makes KVzip+'s contributions of weights. NaN in a row or a key gives NaN.
    """
    query, key = dense_rows(query), dense_rows(key)
    heads, group, n, dim = query.shape
    m = key.shape[1]
    tiles = configuration(dim, n)
    parts = tiles.parts(heads, group, n, m) if m else 1
    partial = torch.empty(parts, heads, m, dtype=torch.float32, device=query.device)
    if m:
        _column_max[(triton.cdiv(m, tiles.keys), heads, parts)](
            query,
            key,
            None if lse is None else lse.contiguous(),
            None if weight is None else weight.contiguous(),
            partial,
            n,
            m,
            scale if lse is None else scale * LOG2E.value,
            **strides_of(query, key),
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
    return partial[0] if parts == 1 else partial.amax(0)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _largest_of_16(scores, KEYS: tl.constexpr, ROWS: tl.constexpr):
    """Maxima of every 16th of 32 or 64 rows: `[KEYS,16]`. A thread holds them all, so nothing is exchanged."""
    if ROWS == 64:
        low, high = halves(scores, KEYS, 64)
        scores = _larger(low, high)
    low, high = halves(scores, KEYS, 32)
    return _larger(low, high)


@triton.jit
def _column_max(
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
    blocks = tl.cdiv(n, ROWS)
    units = GROUP * blocks  # blocks of rows, query head after query head
    best = tl.full([KEYS, 16], float("-inf"), tl.float32)
    for unit in tl.range(units * part // parts, units * (part + 1) // parts, num_stages=STAGES):
        g = unit // blocks
        start = (unit - g * blocks) * ROWS
        of_block = query + head * query_head + tl.cast(g, tl.int64) * query_group + tl.cast(start, tl.int64) * query_row
        rows = load_rows(of_block, query_row, n - start, ROWS, D, PADDED)
        found = products(keys, tl.trans(rows), PRODUCTS)
        i = start + tl.arange(0, ROWS)
        if lse is None:
            bias = tl.where(i < n, 0.0, float("inf"))
        else:
            bias = tl.load(lse + (head * GROUP + g) * n + i, mask=i < n, other=float("inf")) * LOG2E
        scores = tl.fma(found, factor, -bias[None, :])
        if weight is not None:
            of_keys = tl.load(weight + (head * GROUP + g) * m + columns, mask=columns < m, other=0.0)
            scores += tl.log2(of_keys)[:, None]
        best = _larger(best, _largest_of_16(scores, KEYS, ROWS))
    largest = tl.max(best, 1)  # which passes over NaN
    largest = tl.where(tl.max((best != best).to(tl.int32), 1) > 0, float("nan"), largest)
    if lse is not None:
        largest = tl.exp2(largest)
    out = partial + (part.to(tl.int64) * tl.num_programs(1) + head) * m
    tl.store(out + columns, largest, mask=columns < m)


def launches() -> Iterator[Launch]:
    """The forms that are launched; the softmax's with every head dimension."""
    for dim in (64, 80, 96, 128, 256):
        yield _column_launch("softmax", dim, 4, torch.bfloat16)
    yield _column_launch("softmax", 128, 4, torch.float16)
    yield _column_launch("few rows", 128, 4, torch.bfloat16)
    yield _column_launch("logit", 128, 4, torch.bfloat16)
    yield _column_launch("contribution", 128, 7, torch.bfloat16)
    yield _column_launch("contribution", 256, 8, torch.bfloat16)


def _column_launch(form: str, dim: int, group: int, dtype: torch.dtype) -> Launch:
    tiles = configuration(dim, 32 if form == "few rows" else 2100)
    absent = {"lse": None} if form == "logit" else {}
    if form != "contribution":
        absent["weight"] = None
    return column_launch("column_max", form, _column_max, tiles, dim, group, dtype, absent)
