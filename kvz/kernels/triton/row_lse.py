"""Log-sum-exps of query rows over the keys of a softmax, of all heads of a layer: the first pass of KVzip's scores.

Needed only where attention has not given them. For H KV heads of G query heads, n rows each, N keys of D dimensions in
b bytes: 2 H G n N D flops on tensor cores, an FMA and an exponential for each product; it reads (G n + N) H D b bytes
from memory, and the keys from cache once for each 128 rows of a query head.
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
    dense_rows,
    load_rows,
    products,
    products_of,
    short,
    strides_of,
)
from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["RowTiles", "configuration", "launches", "row_lse"]

LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True)
class RowTiles:
    """Tiles of the log-sum-exp: `rows` stay while `keys` go past; dims `padded` to a power of two; warps, stages."""

    rows: int
    keys: int
    padded: int
    warps: int
    stages: int


def configuration(dim: int) -> RowTiles:
    """Tiles of `row_lse` for heads of `dim`: whole rows belong to a warp, so no sum crosses warps."""
    return RowTiles(128, 32, triton.next_power_of_2(dim), 4, 3 if dim <= 128 else 2)


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
    """The forms that are launched; the causal one's with every head dimension."""
    for dim in (64, 80, 96, 128, 256):
        yield _launch("causal", dim, 4, torch.bfloat16)
    yield _launch("causal", 128, 4, torch.float16)
    yield _launch("all keys", 128, 7, torch.bfloat16)


def _launch(form: str, dim: int, group: int, dtype: torch.dtype) -> Launch:
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
