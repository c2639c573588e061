"""Parts of an attention that were computed by several programs, merged by log-sum-exp to the model's dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["Configuration", "configuration", "launch_merge_splits", "launches"]


@dataclass(frozen=True)
class Configuration:
    """Parts at a time, warps and stages."""

    parts: int
    warps: int
    stages: int


def configuration(splits: int) -> Configuration:
    """For a number of parts."""
    return Configuration(min(16, triton.next_power_of_2(splits)), warps=4, stages=1)


@triton.jit
def _merge_splits(
    outs, lses, out, splits, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr
):
    LOG2E: tl.constexpr = 1.4426950408889634
    place = tl.program_id(0).to(tl.int64)  # question and head
    g = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    best = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for first in range(0, splits, PARTS):
        part = first + tl.arange(0, PARTS)
        slot = (place * splits + part) * G + g
        lse = tl.load(lses + slot, mask=part < splits, other=float("-inf"))
        new = tl.maximum(best, tl.max(lse, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        weight = tl.exp2((lse - base) * LOG2E)
        read = ((part < splits) & (lse > float("-inf")))[:, None] & (d < D)[None, :]
        values = tl.load(outs + slot[:, None] * D + d[None, :], mask=read, other=0.0)
        fade = tl.exp2((best - base) * LOG2E)
        total = total * fade + tl.sum(weight, 0)
        acc = acc * fade + tl.sum(values * weight[:, None], 0)
        best = new
    acc = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + (place * G + g) * D + d, acc.to(out.dtype.element_ty), mask=d < D)


def launch_merge_splits(outs: Tensor, lses: Tensor, out: Tensor) -> Tensor:
    """Merge `outs [B,H,S,G,D]` with log-sum-exps `lses [B,H,S,G]`, float32, into contiguous `out [B,1,H*G,D]`.

    A part with log-sum-exp -inf is not read; where all are, the output is zero.
    """
    batch, heads, splits, group, dim = outs.shape
    config = configuration(splits)
    _merge_splits[(batch * heads, group)](
        outs,
        lses,
        out,
        splits,
        G=group,
        D=dim,
        BLOCK_D=triton.next_power_of_2(dim),
        PARTS=config.parts,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out


def launches() -> Iterator[Launch]:
    """All head dimensions, for many parts."""
    config = configuration(64)
    arguments = {"outs": pointer(torch.float32), "lses": pointer(torch.float32), "splits": "i32"}
    for dim in (64, 80, 96, 128, 256):
        for dtype in (torch.bfloat16, torch.float16) if dim == 128 else (torch.bfloat16,):
            constants = {"G": 4, "D": dim, "BLOCK_D": triton.next_power_of_2(dim), "PARTS": config.parts}
            name = f"merge_splits d{dim} {dtype}".replace("torch.", "")
            typed = {**arguments, "out": pointer(dtype)}
            aligned = frozenset({"outs", "lses", "out"})
            yield Launch(name, _merge_splits, typed, constants, config.warps, config.stages, aligned, products=False)
