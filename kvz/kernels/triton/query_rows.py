"""Which rows of an index a step reads for each head, and what they are multiplied with: one launch for a layer.

An index is page bounds (one row a dimension is chosen, its maximum or its minimum) or bit planes (a row is a dimension
and a bit). Weights are stored as a sum of two of the 16-bit numbers that tensor cores multiply, of which the second is
zero where the first is exact, as it is for a query of the bounds' own dtype: rows 0 to P-1 of the weights the first
numbers of the group's heads, rows P to 2P-1 the second ones, times 2^11; all divided by a power of two that brings a
query head's largest to between 1 and 2. Two float16 leave an error of 2^-22 of the largest weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.score_space import ScoreSpace, padded_group
from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["Configuration", "both_terms", "configuration", "launch_query_rows", "launches"]


@dataclass(frozen=True)
class Configuration:
    """Candidates (padded), candidates that all are compared with at a time, warps and stages."""

    candidates: int
    chunk: int
    warps: int
    stages: int


def configuration(dim: int, bits: int) -> Configuration:
    """For `bits` planes of `dim` dimensions, or page bounds (bits 0)."""
    candidates = triton.next_power_of_2(dim * max(1, bits))
    return Configuration(candidates, chunk=16, warps=8 if candidates >= 256 else 4, stages=1)


@triton.jit
def both_terms(product, N: tl.constexpr, P: tl.constexpr):
    """What both terms of the weights add up to: `product [2 P,N]` -> `[P,N]`."""
    row = tl.arange(0, 2 * P)
    scaled = product * tl.where(row < P, 1.0, 0.00048828125)[:, None]
    return tl.sum(tl.reshape(scaled, (2, P, N)), 0)


@triton.jit
def _importance(query, table, c, head, D: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr, COUNT: tl.constexpr):
    """Sum over the group of what candidates `c` weigh; below all where there is none."""
    total = tl.zeros(c.shape, tl.float32)
    for g in tl.static_range(G):
        total += tl.abs(tl.load(query + g * D + c % D, mask=c < COUNT, other=0.0).to(tl.float32))
    if BITS > 0:
        span = tl.load(table + head * D + c % D, mask=c < COUNT, other=0.0)
        total *= span * tl.exp2(-(c // D + 1).to(tl.float32))
    return tl.where(c < COUNT, total, -1.0)


@triton.jit
def _query_rows(
    query,
    table,
    counts,
    rows,
    weights,
    factors,
    biases,
    scale,
    heads,
    width,
    D: tl.constexpr,
    G: tl.constexpr,
    P: tl.constexpr,
    BITS: tl.constexpr,
    GRID: tl.constexpr,
    CANDIDATES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    COUNT: tl.constexpr = D if BITS == 0 else D * BITS
    head = tl.program_id(0)
    place = tl.program_id(1) * heads + head
    query += place.to(tl.int64) * (G * D)
    c = tl.arange(0, CANDIDATES)
    inside = c < COUNT
    mine = _importance(query, table, c, head, D, G, BITS, COUNT)
    rank = tl.zeros((CANDIDATES,), tl.int32)  # how many come before; of equals the first in order
    for first in range(0, COUNT, CHUNK):
        other = first + tl.arange(0, CHUNK)
        theirs = _importance(query, table, other, head, D, G, BITS, COUNT)[None, :]
        before = (theirs > mine[:, None]) | ((theirs == mine[:, None]) & (other[None, :] < c[:, None]))
        rank += tl.sum(before.to(tl.int32), 1)
    used = inside & (rank < tl.load(counts + head))
    kept = inside & (rank < width)
    step = tl.full((CANDIDATES,), 1.0, tl.float32)
    low = tl.zeros((CANDIDATES,), tl.float32)
    if BITS > 0:
        step = tl.load(table + head * D + c % D, mask=inside, other=0.0) * tl.exp2(-(c // D + 1).to(tl.float32))
    elif GRID:
        low = tl.load(table + head * (2 * D) + c, mask=inside, other=0.0)
        step = tl.load(table + head * (2 * D) + D + c, mask=inside, other=0.0)
    summed = tl.zeros((CANDIDATES,), tl.float32)
    for g in tl.static_range(G):
        of_head = tl.load(query + g * D + c % D, mask=inside, other=0.0).to(tl.float32)
        summed += of_head
        weight = of_head * step
        largest = tl.maximum(tl.max(tl.abs(weight), 0), 1.1754943508222875e-38)
        power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        weight = weight / power
        upper = weight.to(weights.dtype.element_ty)
        lower = ((weight - upper.to(tl.float32)) * 2048.0).to(weights.dtype.element_ty)
        at = weights + (place * (2 * P) + g) * width + rank
        tl.store(at, upper, mask=kept)
        tl.store(at + P * width, lower, mask=kept)
        factor = scale
        if BITS == 0:
            size = tl.abs(of_head)
            share = tl.sum(tl.where(used, size, 0.0), 0) / tl.maximum(tl.sum(size, 0), 1.1754943508222875e-38)
            factor = scale / tl.sqrt(tl.maximum(share, 1e-12))
        tl.store(factors + place * P + g, factor * power)
        tl.store(biases + place * P + g, factor * tl.sum(tl.where(used, of_head * low, 0.0), 0))
    row = c
    if BITS == 0:
        row = c + tl.where(summed < 0, D, 0)
    tl.store(rows + place * width + rank, row, mask=kept)


def launch_query_rows(
    query: Tensor, table: Tensor | None, counts: Tensor, bits: int, scale: float, space: ScoreSpace
) -> None:
    """Fill rows, weights, factors and biases of `space` for `query [B,H,G,D]`: one launch.

    counts[h] (`[H]` int32) is how many rows head h is scored with. `table` is the ranges `[H,D]` of bit planes
    (`bits` > 0) or the grid `[H,2,D]` of page bounds (None: they are no codes). Rows and weights come largest first.
    """
    batch, heads, group, dim = query.shape
    config = configuration(dim, bits)
    _query_rows[(heads, batch)](
        query,
        counts if table is None else table,
        counts,
        space.rows,
        space.weights,
        space.factors,
        space.biases,
        scale,
        heads,
        space.rows.shape[2],
        D=dim,
        G=group,
        P=padded_group(group),
        BITS=bits,
        GRID=table is not None,
        CANDIDATES=config.candidates,
        CHUNK=config.chunk,
        num_warps=config.warps,
        num_stages=config.stages,
    )


def launches() -> Iterator[Launch]:
    """Page bounds of 16 and of 8 bits and three bit planes, for all head dimensions."""
    for dim in (64, 80, 96, 128, 256):
        for dtype in (torch.bfloat16, torch.float16) if dim == 128 else (torch.bfloat16,):
            yield _launch(dim, dtype, dtype, 4, bits=0, grid=False)
            yield _launch(dim, dtype, torch.float16, 8, bits=0, grid=True)
            yield _launch(dim, dtype, torch.float16, 4, bits=3, grid=True)


def _launch(dim: int, dtype: torch.dtype, products: torch.dtype, group: int, bits: int, grid: bool) -> Launch:
    config = configuration(dim, bits)
    arguments = {
        "query": pointer(dtype),
        "table": pointer(torch.float32 if grid else torch.int32),
        "counts": pointer(torch.int32),
        "rows": pointer(torch.int32),
        "weights": pointer(products),
        "factors": pointer(torch.float32),
        "biases": pointer(torch.float32),
        "scale": "fp32",
        "heads": "i32",
        "width": "i32",
    }
    constants = {
        "D": dim,
        "G": group,
        "P": padded_group(group),
        "BITS": bits,
        "GRID": grid,
        "CANDIDATES": config.candidates,
        "CHUNK": config.chunk,
    }
    name = f"query_rows d{dim} {dtype} bits{bits} grid{int(grid)}".replace("torch.", "")
    aligned = frozenset(arguments) - {"scale", "heads"}
    return Launch(
        name, _query_rows, arguments, constants, config.warps, config.stages, aligned, products=False, wide=False
    )
