"""Scores of single tokens by bit planes: rows are chosen, then read for all tokens, then softmax and mean: 3 launches.

See `kvz.kernels.plane_scores` for what is computed. Memory is no limit here but the expansion of bits: a bit that is
masked where a float16 has its exponent is the number 2^(2^i - 15) or zero, so that one AND makes a factor of it, and
the eight bits of a byte are eight products of tensor cores whose sums are scaled back. The factors are exact; weights
are two float16 (see `kvz.kernels.triton.query_rows`), sums float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.plane_scores import PlaneIndex
from kvz.kernels.score_space import ALIGNED, ScoreSpace, padded_group
from kvz.kernels.triton.group_mean import launch_group_mean, store_logits, store_nothing
from kvz.kernels.triton.launch import Launch, pointer
from kvz.kernels.triton.query_rows import both_terms, launch_query_rows

__all__ = ["Configuration", "configuration", "launch_plane_scores", "launches"]


@dataclass(frozen=True)
class Configuration:
    """Bytes of a row that a program reads, rows at a time, warps and stages."""

    block: int
    rows: int
    warps: int
    stages: int


def configuration(group: int) -> Configuration:
    """For a GQA group: eight sums of `[2 P,block]` are held in registers."""
    return Configuration(block=64 if group <= 8 else 32, rows=32, warps=4, stages=3)


@triton.jit
def _add(total, weight, byte, BIT: tl.constexpr):
    """Add the products of `weight [2 P,ROWS]` with bit BIT of `byte [ROWS,BLOCK]`."""
    SHIFT: tl.constexpr = 10 if BIT < 5 else 5
    factor = ((byte.to(tl.int16) << SHIFT) & (1 << (SHIFT + BIT))).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.dot(weight, factor, total)


@triton.jit
def _sum(total, N: tl.constexpr, P: tl.constexpr, BIT: tl.constexpr):
    """The sums for bit BIT, `[P,N]`: what a set bit was multiplied with is undone."""
    EXPONENT: tl.constexpr = 15 - (1 << (BIT if BIT < 5 else BIT - 5))
    POWER: tl.constexpr = 2.0**EXPONENT
    return both_terms(total, N, P) * POWER


@triton.jit
def _plane_logits(
    planes,
    starts,
    counts,
    used_rows,
    rows,
    weights,
    factors,
    logits,
    peaks,
    sums,
    heads,
    width,
    row_bytes,
    most,
    parts,
    G: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
):
    part = tl.program_id(0)
    head = tl.program_id(1)
    place = tl.program_id(2) * heads + head
    begin = tl.load(starts + head)
    count = tl.load(counts + head)
    first = begin // ALIGN * ALIGN + part * BLOCK
    if first >= begin + (count + 7) // 8:
        store_nothing(peaks, sums, place, part, parts, G, P)
    else:
        used = tl.load(used_rows + head)
        at = first + tl.arange(0, BLOCK)
        r = tl.arange(0, 2 * P)
        s0 = tl.zeros((2 * P, BLOCK), tl.float32)
        s1 = tl.zeros((2 * P, BLOCK), tl.float32)
        s2 = tl.zeros((2 * P, BLOCK), tl.float32)
        s3 = tl.zeros((2 * P, BLOCK), tl.float32)
        s4 = tl.zeros((2 * P, BLOCK), tl.float32)
        s5 = tl.zeros((2 * P, BLOCK), tl.float32)
        s6 = tl.zeros((2 * P, BLOCK), tl.float32)
        s7 = tl.zeros((2 * P, BLOCK), tl.float32)
        for d in range(0, used, ROWS):
            k = d + tl.arange(0, ROWS)
            row = tl.load(rows + place * width + k, mask=k < used, other=0).to(tl.int64)
            byte = tl.load(
                planes + row[:, None] * row_bytes + at[None, :],
                mask=(k < used)[:, None] & (at < row_bytes)[None, :],
                other=0,
            )
            weight = tl.load(
                weights + (place * (2 * P) + r)[:, None] * width + k[None, :],
                mask=(r % P < G)[:, None] & (k < used)[None, :],
                other=0.0,
            )
            s0 = _add(s0, weight, byte, 0)
            s1 = _add(s1, weight, byte, 1)
            s2 = _add(s2, weight, byte, 2)
            s3 = _add(s3, weight, byte, 3)
            s4 = _add(s4, weight, byte, 4)
            s5 = _add(s5, weight, byte, 5)
            s6 = _add(s6, weight, byte, 6)
            s7 = _add(s7, weight, byte, 7)
        even = tl.interleave(
            tl.interleave(_sum(s0, BLOCK, P, 0), _sum(s4, BLOCK, P, 4)),
            tl.interleave(_sum(s2, BLOCK, P, 2), _sum(s6, BLOCK, P, 6)),
        )
        odd = tl.interleave(
            tl.interleave(_sum(s1, BLOCK, P, 1), _sum(s5, BLOCK, P, 5)),
            tl.interleave(_sum(s3, BLOCK, P, 3), _sum(s7, BLOCK, P, 7)),
        )
        g = tl.arange(0, P)
        factor = tl.load(factors + place * P + g, mask=g < G, other=0.0)
        values = tl.interleave(even, odd) * factor[:, None]
        token = (first - begin) * 8 + tl.arange(0, 8 * BLOCK)
        exists = (token >= 0) & (token < count)
        store_logits(values, token, exists, logits, peaks, sums, place, part, parts, most, G, P)


def launch_plane_scores(query: Tensor, index: PlaneIndex, scale: float, space: ScoreSpace) -> Tensor:
    """See `kvz.kernels.plane_scores.plane_scores`; the error of a logit is below 2^-20 of the sum of |weight|."""
    space.check(query, index.most_rows, index.most)
    query = query.contiguous()
    batch, heads, group, _ = query.shape
    config = configuration(group)
    launch_query_rows(query, index.ranges, index.used, index.bits, scale, space)
    parts = triton.cdiv(triton.cdiv(index.most, 8) + ALIGNED - 1, config.block)
    _plane_logits[(parts, heads, batch)](
        index.planes,
        index.starts,
        index.counts,
        index.used,
        space.rows,
        space.weights,
        space.factors,
        space.logits,
        space.peaks,
        space.sums,
        heads,
        space.rows.shape[2],
        index.planes.shape[1],
        space.logits.shape[3],
        space.peaks.shape[3],
        G=group,
        P=padded_group(group),
        BLOCK=config.block,
        ROWS=config.rows,
        ALIGN=ALIGNED,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return launch_group_mean(space, index.counts, parts)


def launches() -> Iterator[Launch]:
    """For groups of 1 to 8 query heads; the head dimension is in the number of rows only."""
    arguments = {
        "planes": pointer(torch.uint8),
        **dict.fromkeys(("starts", "counts", "used_rows", "rows"), pointer(torch.int32)),
        "weights": pointer(torch.float16),
        **dict.fromkeys(("factors", "logits", "peaks", "sums"), pointer(torch.float32)),
        **dict.fromkeys(("heads", "width", "row_bytes", "most", "parts"), "i32"),
    }
    aligned = frozenset(arguments) - {"heads", "parts"}
    for group in (1, 4, 7, 8):
        config = configuration(group)
        constants = {
            "G": group,
            "P": padded_group(group),
            "BLOCK": config.block,
            "ROWS": config.rows,
            "ALIGN": ALIGNED,
        }
        name = f"plane_scores g{group}"
        yield Launch(name, _plane_logits, arguments, constants, config.warps, config.stages, aligned, wide=False)
