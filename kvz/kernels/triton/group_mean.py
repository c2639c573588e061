"""Softmax in parts: what a block of scores leaves behind, and the mean over a GQA group of the whole softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.score_space import ScoreSpace, padded_group
from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["Configuration", "configuration", "launch_group_mean", "launches", "store_logits", "store_nothing"]


@dataclass(frozen=True)
class Configuration:
    """Units a program, parts looked at together, warps and stages."""

    block: int
    parts: int
    warps: int
    stages: int


def configuration() -> Configuration:
    """The same for all shapes."""
    return Configuration(block=512, parts=32, warps=4, stages=1)


@triton.jit
def store_logits(values, unit, exists, logits, peaks, sums, place, part, parts, most, G: tl.constexpr, P: tl.constexpr):
    """Store `values [P,N]` as logits of the `unit [N]` that `exists`, and their largest and sum of exponentials."""
    LOG2E: tl.constexpr = 1.4426950408889634
    g = tl.arange(0, P)
    at = logits + (place * G + g).to(tl.int64)[:, None] * most + unit[None, :]
    tl.store(at, values, mask=(g < G)[:, None] & exists[None, :])
    values = tl.where(exists[None, :], values, float("-inf"))
    peak = tl.max(values, 1)
    finite = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp2((values - finite[:, None]) * LOG2E), 1)
    of_part = (place * G + g) * parts + part
    tl.store(peaks + of_part, peak, mask=g < G)
    tl.store(sums + of_part, total, mask=g < G)


@triton.jit
def store_nothing(peaks, sums, place, part, parts, G: tl.constexpr, P: tl.constexpr):
    """What a block without a unit leaves behind."""
    g = tl.arange(0, P)
    of_part = (place * G + g) * parts + part
    tl.store(peaks + of_part, tl.full((P,), float("-inf"), tl.float32), mask=g < G)
    tl.store(sums + of_part, tl.zeros((P,), tl.float32), mask=g < G)


@triton.jit
def _group_mean(
    logits,
    peaks,
    sums,
    counts,
    scores,
    heads,
    most,
    parts,
    used_parts,
    G: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    head = tl.program_id(1)
    place = tl.program_id(2) * heads + head
    count = tl.load(counts + head)
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mean = tl.zeros((BLOCK,), tl.float32)
    if tl.program_id(0) * BLOCK < count:
        g = tl.arange(0, P)
        peak = tl.full((P,), float("-inf"), tl.float32)
        total = tl.zeros((P,), tl.float32)
        for first in range(0, used_parts, PARTS):
            part = first + tl.arange(0, PARTS)
            held = (g < G)[:, None] & (part < used_parts)[None, :]
            at = (place * G + g)[:, None] * parts + part[None, :]
            of_part = tl.load(peaks + at, mask=held, other=float("-inf"))
            larger = tl.maximum(peak, tl.max(of_part, 1))
            finite = tl.where(larger == float("-inf"), 0.0, larger)
            added = tl.load(sums + at, mask=held, other=0.0) * tl.exp2((of_part - finite[:, None]) * LOG2E)
            total = total * tl.exp2((peak - finite) * LOG2E) + tl.sum(added, 1)
            peak = larger
        at = (place * G + g).to(tl.int64)[:, None] * most + unit[None, :]
        values = tl.load(logits + at, mask=(g < G)[:, None] & (unit < most)[None, :], other=float("-inf"))
        values = tl.where((g < G)[:, None] & (unit < count)[None, :], values, float("-inf"))
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        share = 1.0 / (tl.where(total > 0, total, 1.0) * G)
        mean = tl.sum(tl.exp2((values - peak[:, None]) * LOG2E) * share[:, None], 0)
    tl.store(scores + place.to(tl.int64) * most + unit, mean, mask=unit < most)


def launch_group_mean(space: ScoreSpace, counts: Tensor, parts: int) -> Tensor:
    """Fill `space.scores` from its logits, peaks and sums, of which the first `parts` were written: one launch."""
    batch, heads, group, most = space.logits.shape
    config = configuration()
    _group_mean[(triton.cdiv(most, config.block), heads, batch)](
        space.logits,
        space.peaks,
        space.sums,
        counts,
        space.scores,
        heads,
        most,
        space.peaks.shape[3],
        parts,
        G=group,
        P=padded_group(group),
        BLOCK=config.block,
        PARTS=config.parts,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return space.scores


def launches() -> Iterator[Launch]:
    """For groups of 1 to 8 query heads."""
    config = configuration()
    floats = dict.fromkeys(("logits", "peaks", "sums", "scores"), pointer(torch.float32))
    numbers = dict.fromkeys(("heads", "most", "parts", "used_parts"), "i32")
    arguments = {**floats, "counts": pointer(torch.int32), **numbers}
    for group in (1, 4, 7, 8):
        constants = {"G": group, "P": padded_group(group), "BLOCK": config.block, "PARTS": config.parts}
        aligned = frozenset({*floats, "counts", "most"})
        yield Launch(
            f"group_mean g{group}",
            _group_mean,
            arguments,
            constants,
            config.warps,
            config.stages,
            aligned,
            products=False,
        )
