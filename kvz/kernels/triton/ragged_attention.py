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
from torch import Tensor

from kvz.kernels.decode_plan import DecodePlan, TailPairs
from kvz.kernels.schedule import block_rows, programs_at_once
from kvz.kernels.triton.launch import Launch, pointer
from kvz.kernels.triton.merge_slots import launch_merge
from kvz.kernels.triton.ragged_kernel import ragged_attention_kernel

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
    block = block_rows(rows, dim, bits)
    # Codes, and the masks of a D that is no power of 2, take registers too.
    codes, padded = bits < 16, dim & (dim - 1) > 0
    tight = block > (64, 32, 0)[codes + padded]
    pairs = 32 if dim > 128 or (tight and (dim > 64 or codes)) else 64
    warps = 8 // programs_at_once(block, dim, bits)
    # With three, two programs of 64 rows and pairs do not fit on an A100's SM, and 32 of padded codes spill.
    stages = 2 if (block == pairs and dim <= 128) or dtype == torch.float32 else 3
    return Configuration(block, min(block, block_rows(tail_rows, dim, bits)), pairs, warps, stages)


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
        **_constants(pairs.dim, pairs.bits, pairs.group, chosen),
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )


def _check(query: Tensor, plan: DecodePlan, tail: TailPairs | None) -> None:
    rows, heads, dim = plan.rows, plan.heads, plan.pairs.dim
    wanted = rows.batch, heads * rows.group, rows.tokens, dim
    if query.shape != wanted or query.stride(3) != 1:
        raise ValueError(f"planned for queries {wanted}, 1 apart in D, not {tuple(query.shape)}")
    if sum((size - 1) * stride for size, stride in zip(query.shape, query.stride(), strict=True)) >= 1 << 31:
        raise ValueError("a query of 2^31 numbers or more is too large")
    if (tail is None) != (plan.splits == 0):
        raise ValueError("planned for a tail" if tail is None else "planned without a tail")
    if tail is None:
        return
    batch, kv_heads, _, dim_of_tail = tail.keys.shape
    if (batch, kv_heads, dim_of_tail) != (rows.batch, heads, dim) or tail.past.shape != (batch,):
        raise ValueError(f"planned for tails of {rows.batch} questions, {heads} heads and {dim} dimensions")
    if tail.keys.stride() != tail.values.stride() or tail.keys.stride()[2:] != (dim, 1):
        raise ValueError("a tail's keys and values must be laid out alike, a question's tokens end to end")
    if tail.keys.dtype != query.dtype or tail.past.dtype != torch.int32:
        raise ValueError(f"a tail must be {query.dtype}, and its lengths int32")


def launches() -> Iterator[Launch]:
    """A step of one question and of several, and a question's tokens; for every D in bf16, for one in fp16."""
    for dim in (64, 80, 96, 128, 256):
        for rows, tail_rows in ((4, 4), (32, 4), (64, 64), (128, 4), (2048, 2048)):
            yield _launch_of(dim, rows, tail_rows, torch.bfloat16)
    yield _launch_of(128, 4, 4, torch.float16)
    yield _launch_of(128, 4, 4, torch.bfloat16, tail=False)
    for dim in (64, 96, 128, 256):
        for bits in (8, 4):
            for rows in (4, 2048):
                yield _launch_of(dim, rows, rows, torch.bfloat16, bits)


def _launch_of(dim: int, rows: int, tail_rows: int, dtype: torch.dtype, bits: int = 16, tail: bool = True) -> Launch:
    chosen = configuration(dim, rows, tail_rows, dtype, bits)
    number = pointer(dtype)
    wide = {
        "query": number,
        **dict.fromkeys(("keys", "values"), number if bits == 16 else "*u8"),
        **dict.fromkeys(("key_scale", "key_zero", "value_scale", "value_zero"), None if bits == 16 else "*fp16"),
        **dict.fromkeys(("tail_keys", "tail_values"), number if tail else None),
        **dict.fromkeys(("segments", "programs"), "*i32"),
        "past": "*i32" if tail else None,
        **dict.fromkeys(("outs", "lses"), "*fp32"),
        **dict.fromkeys(("query_b", "query_h", "query_n", "tail_b", "tail_h"), "i32"),
    }
    counts = "heads", "group", "tokens", "rows", "row_blocks", "tail_units", "tail_blocks", "splits", "tail_slot"
    present = {name: kind for name, kind in wide.items() if kind is not None}
    return Launch(
        f"ragged_attention D={dim} rows={rows} of which {tail_rows} a question, {number[1:]}, {bits} bits"
        + ("" if tail else ", no tail"),
        ragged_attention_kernel,
        {**present, **dict.fromkeys(counts, "i32"), "scale": "fp32"},
        {**dict.fromkeys(wide.keys() - present.keys()), **_constants(dim, bits, 32, chosen)},
        chosen.warps,
        chosen.stages,
        frozenset(present),
    )


def _constants(dim: int, bits: int, group: int, chosen: Configuration) -> dict[str, int]:
    return {
        "D": dim,
        "BLOCK_D": triton.next_power_of_2(dim),
        "BLOCK_M": chosen.rows,
        "TAIL_M": chosen.tail_rows,
        "BLOCK_N": chosen.pairs,
        "BITS": bits,
        "GROUP": group,
    }
