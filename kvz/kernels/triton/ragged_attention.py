"""Split-K attention over a layer's ragged pairs and over the tails of the questions, in one launch and one merge.

A program either works through its share of the archive's pairs (`kvz.kernels.schedule`) for a block of the rows of all
questions, so that pairs are read once for all of them, or through a part of one question's tail for a block of that
question's rows. Each segment leaves a float32 output and its log-sum-exp in a slot. The plain form is
`kvz.kernels.ragged_decode.plain_ragged_decode`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.decode_plan import DecodePlan, TailPairs
from kvz.kernels.schedule import block_rows
from kvz.kernels.triton.launch import Launch, pointer
from kvz.kernels.triton.load_pairs import load_pairs
from kvz.kernels.triton.merge_slots import launch_merge

__all__ = ["Configuration", "configuration", "launches", "triton_ragged_decode"]

_LOG2_E = log2(2.718281828459045)


@dataclass(frozen=True)
class Configuration:
    """Rows and pairs that a program takes at a time: of the archive for all rows, of a tail for a question's."""

    rows: int
    tail_rows: int
    pairs: int
    warps: int
    stages: int


def configuration(dim: int, rows: int, tail_rows: int, dtype: torch.dtype, bits: int = 16) -> Configuration:
    """For `rows` query rows a KV head, of which `tail_rows` are one question's."""
    block = block_rows(rows, dim)
    pairs = 64 if dim <= 128 else 32
    stages = 2 if dtype == torch.float32 or bits < 16 or block > 64 else 3
    return Configuration(block, min(block, block_rows(tail_rows, dim)), pairs, 8 if block > 64 else 4, stages)


@triton.jit
def _take(q, k, v, seen, scale, best, total, acc):
    """One step of softmax online: rows `q [M,D]` over pairs `k, v [N,D]`, of which they see `seen [M,N]`.

    `best, total [M]` and `acc [M,D]` are the largest score so far in units of log 2, the sum of weights and of values.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(seen, scores, float("-inf"))
    new = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(best - base)
    acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return new, total * fade + tl.sum(weights, 1), acc


@triton.jit
def _leave(outs, lses, slot, r, held, rows, best, total, acc, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write rows `r [M]` that are `held [M]` of a result; without a pair the log-sum-exp is -inf, and no output."""
    d = tl.arange(0, BLOCK_D)
    some = total > 0
    place = slot.to(tl.int64) * rows + r
    lse = (best + tl.log2(tl.where(some, total, 1.0))) * 0.6931471805599453
    tl.store(lses + place, tl.where(some, lse, float("-inf")), mask=held)
    out = acc / tl.where(some, total, 1.0)[:, None]
    tl.store(outs + place[:, None] * D + d[None, :], out, mask=(held & some)[:, None] & (d < D)[None, :])


@triton.jit
def ragged_attention_kernel(
    query,
    keys,
    values,
    key_scale,
    key_zero,
    value_scale,
    value_zero,
    tail_keys,
    tail_values,
    past,
    segments,
    programs,
    outs,
    lses,
    query_b,
    query_h,
    query_n,
    tail_b,
    tail_h,
    scale,
    heads,
    group,
    tokens,
    rows,
    row_blocks,
    tail_units,
    tail_blocks,
    splits,
    tail_slot,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TAIL_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """`query [B,Hq,n,D]` strided, 1 in D; programs of the tails come first, since how long they take is not known.

    Row (b group + g) tokens + i of KV head h is token i of question b in query head h group + g.
    """
    DTYPE: tl.constexpr = query.dtype.element_ty
    unit = tl.program_id(0)
    d = tl.arange(0, BLOCK_D)[None, :]
    in_question = group * tokens
    if unit < tail_units:
        if tail_keys is not None:
            split = unit % splits
            block = unit // splits % tail_blocks
            head = unit // (splits * tail_blocks) % heads
            b = unit // (splits * tail_blocks * heads)
            m = block * TAIL_M + tl.arange(0, TAIL_M)
            held = m < in_question
            i = m % tokens
            at = query + b.to(tl.int64) * query_b + (head * group + m // tokens) * query_h + i.to(tl.int64) * query_n
            q = tl.load(at[:, None] + d, mask=held[:, None] & (d < D), other=0.0)
            last_seen = tl.load(past + b) + i
            length = tl.max(tl.where(held, last_seen, -1), 0) + 1
            share = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
            first = split * share
            last = tl.minimum(first + share, length)
            base = b.to(tl.int64) * tail_b + head.to(tl.int64) * tail_h
            best = tl.full([TAIL_M], float("-inf"), tl.float32)
            total = tl.zeros([TAIL_M], tl.float32)
            acc = tl.zeros([TAIL_M, BLOCK_D], tl.float32)
            for start in range(first, last, BLOCK_N):
                j = start + tl.arange(0, BLOCK_N)
                k = load_pairs(tail_keys + base, None, None, j, j < last, D, BLOCK_D, 16, GROUP, DTYPE)
                v = load_pairs(tail_values + base, None, None, j, j < last, D, BLOCK_D, 16, GROUP, DTYPE)
                seen = (j < last)[None, :] & (j[None, :] <= last_seen[:, None])
                best, total, acc = _take(q, k, v, seen, scale, best, total, acc)
            r = b * in_question + m
            _leave(outs, lses, tail_slot + head * splits + split, r, held, rows, best, total, acc, D, BLOCK_D)
    else:
        program = (unit - tail_units) // row_blocks
        r = (unit - tail_units) % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
        held = r < rows
        m = r % in_question
        of_row = (r // in_question).to(tl.int64) * query_b + (m // tokens) * query_h + (m % tokens).to(tl.int64) * query_n
        for s in range(tl.load(programs + program), tl.load(programs + program + 1)):
            head = tl.load(segments + 4 * s)
            first = tl.load(segments + 4 * s + 1)
            last = tl.load(segments + 4 * s + 2)
            slot = tl.load(segments + 4 * s + 3)
            at = query + head.to(tl.int64) * group * query_h + of_row
            q = tl.load(at[:, None] + d, mask=held[:, None] & (d < D), other=0.0)
            best = tl.full([BLOCK_M], float("-inf"), tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            for start in range(first, last, BLOCK_N):
                j = start + tl.arange(0, BLOCK_N)
                k = load_pairs(keys, key_scale, key_zero, j, j < last, D, BLOCK_D, BITS, GROUP, DTYPE)
                v = load_pairs(values, value_scale, value_zero, j, j < last, D, BLOCK_D, BITS, GROUP, DTYPE)
                best, total, acc = _take(q, k, v, (j < last)[None, :], scale, best, total, acc)
            _leave(outs, lses, slot, r, held, rows, best, total, acc, D, BLOCK_D)


def triton_ragged_decode(
    query: Tensor, plan: DecodePlan, scale: float, tail: TailPairs | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of `query [B,Hq,n,D]` as `kvz.kernels.ragged_decode.ragged_decode` has it; can be captured.

    Raises ValueError for tensors of other shapes or strides than planned.
    """
    _check(query, plan, tail)
    rows, heads = plan.rows, plan.heads
    of_question = rows.group * rows.tokens
    chosen = configuration(plan.pairs.dim, rows.count, of_question, query.dtype, plan.pairs.bits)
    tail_blocks = triton.cdiv(of_question, chosen.tail_rows)
    splits = plan.splits if tail is not None else 0
    tail_units = rows.batch * heads * tail_blocks * splits
    units = tail_units + plan.schedule.program_count * plan.schedule.row_blocks
    if units:
        _launch(query, plan, scale, tail, chosen, units, tail_units, tail_blocks)
    out = query.new_empty(rows.batch, rows.tokens, heads * rows.group, plan.pairs.dim)
    lse = torch.empty(out.shape[:3], dtype=torch.float32, device=query.device)
    launch_merge(plan, out, lse)
    return out, lse


def _launch(
    query: Tensor,
    plan: DecodePlan,
    scale: float,
    tail: TailPairs | None,
    chosen: Configuration,
    units: int,
    tail_units: int,
    tail_blocks: int,
) -> None:
    pairs, rows, schedule = plan.pairs, plan.rows, plan.schedule
    key_grid, value_grid = pairs.key_grid, pairs.value_grid
    ragged_attention_kernel[(units,)](
        query,
        pairs.keys,
        pairs.values,
        None if key_grid is None else key_grid.scale,
        None if key_grid is None else key_grid.zero,
        None if value_grid is None else value_grid.scale,
        None if value_grid is None else value_grid.zero,
        None if tail is None else tail.keys,
        None if tail is None else tail.values,
        None if tail is None else tail.past,
        schedule.segments,
        schedule.programs,
        plan.outs,
        plan.lses,
        *query.stride()[:3],
        *((0, 0) if tail is None else tail.keys.stride()[:2]),
        scale * _LOG2_E,
        plan.heads,
        rows.group,
        rows.tokens,
        rows.count,
        schedule.row_blocks,
        tail_units,
        tail_blocks,
        plan.splits,
        schedule.slots,
        D=pairs.dim,
        BLOCK_D=triton.next_power_of_2(pairs.dim),
        BLOCK_M=chosen.rows,
        TAIL_M=chosen.tail_rows,
        BLOCK_N=chosen.pairs,
        BITS=pairs.bits,
        GROUP=pairs.group,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )


def _check(query: Tensor, plan: DecodePlan, tail: TailPairs | None) -> None:
    rows, heads, dim = plan.rows, plan.heads, plan.pairs.dim
    wanted = rows.batch, heads * rows.group, rows.tokens, dim
    if query.shape != wanted or query.stride(3) != 1:
        raise ValueError(f"planned for queries {wanted}, 1 apart in D, not {tuple(query.shape)}")
    if (tail is None) != (plan.splits == 0):
        raise ValueError("planned for a tail" if tail is None else "planned without a tail")
    if tail is None:
        return
    if tail.keys.stride() != tail.values.stride() or tail.keys.stride()[2:] != (dim, 1):
        raise ValueError("a tail's keys and values must be laid out alike, a question's tokens end to end")
    if tail.keys.dtype != query.dtype or tail.past.dtype != torch.int32:
        raise ValueError(f"a tail must be {query.dtype}, and its lengths int32")


def launches() -> Iterator[Launch]:
    """A step of one question and of several, and a question's tokens; for every D in bf16, for one in fp16."""
    for dim in (64, 80, 96, 128, 256):
        for rows, tail_rows in ((4, 4), (32, 4), (64, 64), (2048, 2048)):
            yield _launch_of(dim, rows, tail_rows, torch.bfloat16)
    yield _launch_of(128, 4, 4, torch.float16)
    for dim in (64, 80, 128):
        for bits in (8, 4):
            for rows in (4, 2048):
                yield _launch_of(dim, rows, rows, torch.bfloat16, bits)


def _launch_of(dim: int, rows: int, tail_rows: int, dtype: torch.dtype, bits: int = 16) -> Launch:
    chosen = configuration(dim, rows, tail_rows, dtype, bits)
    number = pointer(dtype)
    pairs = dict.fromkeys(("keys", "values"), number if bits == 16 else "*u8")
    grids = dict.fromkeys(("key_scale", "key_zero", "value_scale", "value_zero"), "*fp16" if bits < 16 else None)
    numbers = dict.fromkeys(("query", "tail_keys", "tail_values"), number)
    tables = dict.fromkeys(("past", "segments", "programs"), "*i32")
    results = dict.fromkeys(("outs", "lses"), "*fp32")
    strides = dict.fromkeys(("query_b", "query_h", "query_n", "tail_b", "tail_h"), "i32")
    counts = dict.fromkeys(
        ("heads", "group", "tokens", "rows", "row_blocks", "tail_units", "tail_blocks", "splits", "tail_slot"), "i32"
    )
    arguments = {**pairs, **grids, **numbers, **tables, **results, **strides, **counts, "scale": "fp32"}
    absent = {name: None for name, kind in arguments.items() if kind is None}
    constants = {
        "D": dim,
        "BLOCK_D": triton.next_power_of_2(dim),
        "BLOCK_M": chosen.rows,
        "TAIL_M": chosen.tail_rows,
        "BLOCK_N": chosen.pairs,
        "BITS": bits,
        "GROUP": 32,
    }
    return Launch(
        f"ragged_attention D={dim} rows={rows} of which {tail_rows} a question, {number[1:]}, {bits} bits",
        ragged_attention_kernel,
        {name: kind for name, kind in arguments.items() if kind is not None},
        {**constants, **absent},
        chosen.warps,
        chosen.stages,
        frozenset((*pairs, *numbers, *tables, *results, *strides, *(name for name in grids if bits < 16))),
    )
