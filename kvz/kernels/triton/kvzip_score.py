"""KVzip's scores of all KV heads of a layer in one launch (arXiv 2505.23416), in two passes: `row_lse`, `column_max`.

The first gives log-sum-exps of query rows over all keys of the softmax; where attention has given them it is not
needed. The second gives each key of the chunk its largest weight over group and rows. Exact: no weight is left out,
and none but the largest is exponentiated.

Column maxima, for H KV heads of G query heads, n rows each, m keys of D dimensions in b bytes: 2 H G n m D flops on
tensor cores, two more a product (an FMA and a maximum); it reads (G n + m) H D b bytes from memory, and from cache the
queries once for each 128 keys and the keys once for each part; it writes parts * H m floats. H=8, G=4, n=2100, m=2048,
D=128 in bfloat16: 35 Gflop, 21 MB from memory, 0.28 GB from cache.
Row log-sum-exps over N keys: 2 H G n N D flops, N H D b bytes once for each 128 rows of a query head, from cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.triton.key_columns import (
    LOG2E,
    STRIDES,
    column_launch,
    column_tiles,
    dense_rows,
    halves,
    load_rows,
    products,
    products_of,
    short,
    strides_of,
)
from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["RowTiles", "column_max", "configuration", "launches", "row_lse"]

LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


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
    tiles = column_tiles(dim, n)
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


@dataclass(frozen=True)
class RowTiles:
    """Tiles of the log-sum-exp: `rows` stay while `keys` go past; dims `padded` to a power of two; warps, stages."""

    rows: int
    keys: int
    padded: int
    warps: int
    stages: int


def configuration(dim: int) -> RowTiles:
    """Tiles of `row_lse` for heads of `dim`: rows are divided among warps, so that no sum of a row crosses them."""
    padded = triton.next_power_of_2(dim)
    return RowTiles(128, 32, padded, 8, 2) if dim > 128 else RowTiles(128, 32, padded, 4, 3)


def row_lse(query: Tensor, parts: Sequence[tuple[Tensor, bool]], scale: float) -> Tensor:
    """Natural log-sum-exp of scaled products over the keys of all parts: `[H,G,n]` float32.

    `query [H,G,n,D]`; a part is (keys `[H,N,D]`, causal): where it is causal, row i sees keys 0..i of it. The parts of
    KVzip's softmax are (prefix, False), (chunk, False) and (the repeat input's own keys, True). A row that sees no key
    at all has -inf. One launch a part, each added to those before it.
    """
    query = dense_rows(query)
    heads, group, n, dim = query.shape
    tiles = configuration(dim)
    lse = torch.full((heads, group, n), float("-inf"), dtype=torch.float32, device=query.device)
    for keys, causal in parts:
        key = dense_rows(keys)
        if n and key.shape[1]:
            _row_lse[(triton.cdiv(n, tiles.rows), heads * group)](
                query,
                key,
                lse,
                n,
                key.shape[1],
                scale * LOG2E.value,
                **strides_of(query, key),
                GROUP=group,
                CAUSAL=causal,
                D=dim,
                PADDED=tiles.padded,
                ROWS=tiles.rows,
                KEYS=tiles.keys,
                STAGES=tiles.stages,
                PRODUCTS=products_of(query.dtype),
                num_warps=tiles.warps,
                num_stages=tiles.stages,
            )
    return lse


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


@triton.jit
def _row_lse(
    query,
    key,
    lse,
    n,
    m,
    factor,
    query_head,
    query_group,
    query_row,
    key_head,
    key_row,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    start = tl.program_id(0) * ROWS
    query_index = tl.program_id(1).to(tl.int64)
    head = query_index // GROUP
    g = query_index % GROUP
    of_block = query + head * query_head + g * query_group + start.to(tl.int64) * query_row
    rows = load_rows(of_block, query_row, n - start, ROWS, D, PADDED)
    i = start + tl.arange(0, ROWS)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    stop = m
    if CAUSAL:
        stop = tl.minimum(m, start + ROWS)
    for first in tl.range(0, stop, KEYS, num_stages=STAGES):
        of_keys = key + head * key_head + tl.cast(first, tl.int64) * key_row
        keys = load_rows(of_keys, key_row, m - first, KEYS, D, PADDED)
        j = first + tl.arange(0, KEYS)
        seen = (j < m)[None, :]
        if CAUSAL:
            seen = seen & (j[None, :] <= i[:, None])
        scores = tl.where(seen, products(rows, tl.trans(keys), PRODUCTS) * factor, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))  # finite: every row sees the first key
        total = total * tl.exp2(peak - higher) + tl.sum(tl.exp2(scores - higher[:, None]), 1)
        peak = higher
    here = (peak + tl.log2(total)) * LN2
    out = lse + query_index * n + i
    before = tl.load(out, mask=i < n, other=0.0)
    higher = tl.maximum(before, here)
    merged = higher + tl.log(tl.exp(before - higher) + tl.exp(here - higher))
    tl.store(out, merged, mask=i < n)


def launches() -> Iterator[Launch]:
    """The forms that are launched; the softmax's with every head dimension."""
    for dim in (64, 80, 96, 128, 256):
        yield _column_launch("softmax", dim, 4, torch.bfloat16)
        yield _row_launch("causal", dim, 4, torch.bfloat16)
    yield _column_launch("softmax", 128, 4, torch.float16)
    yield _column_launch("logit", 128, 4, torch.bfloat16)
    yield _column_launch("contribution", 128, 7, torch.bfloat16)
    yield _column_launch("contribution", 256, 8, torch.bfloat16)
    yield _row_launch("causal", 128, 4, torch.float16)
    yield _row_launch("all keys", 128, 7, torch.bfloat16)


def _column_launch(form: str, dim: int, group: int, dtype: torch.dtype) -> Launch:
    tiles = column_tiles(dim, 2100)
    absent = {"lse": None} if form == "logit" else {}
    if form != "contribution":
        absent["weight"] = None
    return column_launch("column_max", form, _column_max, tiles, dim, group, dtype, absent)


def _row_launch(form: str, dim: int, group: int, dtype: torch.dtype) -> Launch:
    tiles = configuration(dim)
    arguments = {
        "query": pointer(dtype),
        "key": pointer(dtype),
        "lse": "*fp32",
        "n": "i32",
        "m": "i32",
        "factor": "fp32",
        **dict.fromkeys(STRIDES, "i32"),
    }
    constants = {
        "GROUP": group,
        "CAUSAL": form == "causal",
        "D": dim,
        "PADDED": tiles.padded,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "STAGES": tiles.stages,
        "PRODUCTS": products_of(dtype),
    }
    aligned = frozenset(("query", "key", "lse", *STRIDES))
    return Launch(
        f"row_lse {form} D={dim} G={group} {short(dtype)}",
        _row_lse,
        arguments,
        constants,
        tiles.warps,
        tiles.stages,
        aligned,
    )
