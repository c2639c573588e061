"""Merging the results that programs left in slots: one output a row, by log-sum-exp.

The plain form is `kvz.kernels.merge.merge_stacked`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.decode_plan import DecodePlan
from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["MergeConfiguration", "configuration", "launch_merge", "launches"]

_MANY = 2048  # programs that fill a GPU without cutting D


@dataclass(frozen=True)
class MergeConfiguration:
    """Slots and dimensions that a program takes at a time."""

    slots: int
    dims: int
    warps: int
    stages: int


def configuration(dim: int, slots: int, rows: int) -> MergeConfiguration:
    """For heads of at most `slots` results, and `rows` rows over all heads: with few of them, programs share out D."""
    padded: int = triton.next_power_of_2(dim)
    block = min(64, max(4, triton.next_power_of_2(slots)))
    if rows >= _MANY:
        return MergeConfiguration(min(block, 16), padded, 2, 2)
    return MergeConfiguration(block, 32, 4 if block > 16 else 1, 2)


@triton.jit(do_not_specialize=["group", "tokens", "rows", "tail_slot", "splits"])
def merge_kernel(
    outs,
    lses,
    head_slots,
    out,
    out_lse,
    out_b,
    out_n,
    out_h,
    group,
    tokens,
    rows,
    tail_slot,
    splits,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Row `program_id(0)` of KV head `program_id(1)`, dimensions `program_id(2)`: `out [B,n,Hq,D]` strided."""
    row, head = tl.program_id(0), tl.program_id(1)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    first = tl.load(head_slots + head)
    own = tl.load(head_slots + head + 1) - first
    # Slot numbers of the head: those of its segments, then those of its tail's parts.
    to_tail = tail_slot + head * splits - own
    best = float("-inf")
    for start in range(0, own + splits, SLOTS):
        j = start + tl.arange(0, SLOTS)
        slot = tl.where(j < own, first + j, to_tail + j)
        lse = tl.load(lses + slot.to(tl.int64) * rows + row, mask=j < own + splits, other=float("-inf"))
        best = tl.maximum(best, tl.max(lse, 0))
    base = tl.where(best == float("-inf"), 0.0, best)
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, own + splits, SLOTS):
        j = start + tl.arange(0, SLOTS)
        slot = tl.where(j < own, first + j, to_tail + j).to(tl.int64) * rows + row
        lse = tl.load(lses + slot, mask=j < own + splits, other=float("-inf"))
        weight = tl.exp(lse - base)
        held = (lse > float("-inf"))[:, None] & (d < D)[None, :]  # an empty part has written no output
        part = tl.load(outs + slot[:, None] * D + d[None, :], mask=held, other=0.0)
        total += tl.sum(weight, 0)
        acc += tl.sum(part * weight[:, None], 0)
    acc = acc / tl.where(total > 0, total, 1.0)
    b, in_question = row // (group * tokens), row % (group * tokens)
    query_head, i = head * group + in_question // tokens, in_question % tokens
    place = out + b.to(tl.int64) * out_b + i * out_n + query_head * out_h
    tl.store(place + d, acc.to(out.dtype.element_ty), mask=d < D)
    if tl.program_id(2) == 0:
        heads = tl.num_programs(1)
        found = tl.where(total > 0, base + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
        tl.store(out_lse + (b * tokens + i) * heads * group + query_head, found)


def launch_merge(plan: DecodePlan, out: Tensor, lse: Tensor) -> None:
    """Merge a plan's results into `out [B,n,Hq,D]`, of any strides but 1 in D, and `lse [B,n,Hq]` contiguous."""
    rows, heads, dim = plan.rows, plan.heads, plan.pairs.dim
    chosen = configuration(dim, plan.schedule.most_slots + plan.splits, rows.count * heads)
    merge_kernel[(rows.count, heads, triton.cdiv(dim, chosen.dims))](
        plan.outs,
        plan.lses,
        plan.schedule.heads,
        out,
        lse,
        *out.stride()[:3],
        rows.group,
        rows.tokens,
        rows.count,
        plan.schedule.slots,
        plan.splits,
        D=dim,
        BLOCK_D=chosen.dims,
        SLOTS=chosen.slots,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )


def launches() -> Iterator[Launch]:
    """Few rows and many, of bf16 for every D."""
    integers = ("out_b", "out_n", "out_h", "group", "tokens", "rows", "tail_slot", "splits")
    for dim in (64, 80, 96, 128, 256):
        for slots, rows in ((4, 32), (64, 32), (8, 16384)):
            chosen = configuration(dim, slots, rows)
            yield Launch(
                f"merge_slots D={dim} slots={slots} rows={rows}",
                merge_kernel,
                {
                    "outs": "*fp32",
                    "lses": "*fp32",
                    "head_slots": "*i32",
                    "out": pointer(torch.bfloat16),
                    "out_lse": "*fp32",
                    **dict.fromkeys(integers, "i32"),
                },
                {"D": dim, "BLOCK_D": chosen.dims, "SLOTS": chosen.slots},
                chosen.warps,
                chosen.stages,
                frozenset(("outs", "lses", "head_slots", "out", "out_lse", "out_b", "out_n", "out_h")),
                products=False,
            )
