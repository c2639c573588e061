"""Attention of a sparse step by Triton: prefix, chosen pairs and tail in one launch, and a merge of its parts.

See `kvz.kernels.sparse_attention` for what is computed. What a head attends is cut into blocks of pairs, the prefix
first, then what is chosen, then the tail; a program takes an equal share of the blocks, for all rows of a GQA group,
and reads each pair where it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.sparse_attention import ChoosableLayer, SparseSpace
from kvz.kernels.triton.launch import Launch, pointer
from kvz.kernels.triton.merge_splits import launch_merge_splits
from kvz.kernels.triton.products import add_product

__all__ = ["Configuration", "configuration", "launch_sparse_attention", "launches"]


@dataclass(frozen=True)
class Configuration:
    """Rows that a group is padded to, pairs at a time, warps and stages."""

    rows: int
    pairs: int
    warps: int
    stages: int


def configuration(dim: int, group: int, dtype: torch.dtype) -> Configuration:
    """For a head dimension and a GQA group."""
    stages = 2 if dtype == torch.float32 else 4 if dim <= 128 else 3
    return Configuration(max(16, triton.next_power_of_2(group)), 64 if dim <= 64 else 32, 4, stages)


@triton.jit
def _take(
    q, keys, values, at, seen, scale, best, total, acc, D: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr
):
    """One step of softmax online over the pairs `at [N]` that are `seen [N]`; `best` is in units of log 2."""
    d = tl.arange(0, BLOCK_D)
    where = at[:, None] * D + d[None, :]
    read = seen[:, None] & (d < D)[None, :]
    k = tl.load(keys + where, mask=read, other=0.0)
    v = tl.load(values + where, mask=read, other=0.0)
    scores = add_product(tl.zeros((q.shape[0], at.shape[0]), tl.float32), q, tl.trans(k), WIDE) * scale
    scores = tl.where(seen[None, :], scores, float("-inf"))
    new = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(best - base)
    acc = add_product(acc * fade[:, None], weights.to(v.dtype), v, WIDE)
    return new, total * fade + tl.sum(weights, 1), acc


@triton.jit
def _sparse_attention(
    query,
    keys,
    values,
    starts,
    lengths,
    takes,
    units,
    tail_keys,
    tail_values,
    past,
    outs,
    lses,
    scale,
    heads,
    prefix,
    most,
    splits,
    tail_b,
    tail_h,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    G: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
):
    split = tl.program_id(0)
    head = tl.program_id(1)
    question = tl.program_id(2)
    place = (question * heads + head).to(tl.int64)
    start = tl.load(starts + head).to(tl.int64)
    length = tl.load(lengths + head)
    tokens = tl.load(takes + head) * SIZE
    held = tl.load(past + question)
    before = tl.cdiv(prefix, PAIRS)
    chosen = tl.cdiv(tokens, PAIRS)
    blocks = before + chosen + tl.cdiv(held, PAIRS)
    share = tl.cdiv(blocks, splits)
    low = split * share
    high = tl.minimum(low + share, blocks)

    g = tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    within = (g < G)[:, None] & (d < D)[None, :]
    q = tl.load(query + (place * G + g)[:, None] * D + d[None, :], mask=within, other=0.0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    n = tl.arange(0, PAIRS)
    for block in range(low, tl.minimum(high, before)):
        token = block * PAIRS + n
        best, total, acc = _take(
            q, keys, values, start + token, token < prefix, scale, best, total, acc, D, BLOCK_D, WIDE
        )
    for block in range(tl.maximum(low - before, 0), tl.minimum(high - before, chosen)):
        number = block * PAIRS + n
        unit = tl.load(units + place * most + number // SIZE, mask=number < tokens, other=-1)
        token = unit * SIZE + number % SIZE
        seen = (unit >= 0) & (token < length)
        at = start + prefix + token
        best, total, acc = _take(q, keys, values, at, seen, scale, best, total, acc, D, BLOCK_D, WIDE)
    own = question.to(tl.int64) * tail_b + head.to(tl.int64) * tail_h
    for block in range(tl.maximum(low - before - chosen, 0), high - before - chosen):
        token = block * PAIRS + n
        best, total, acc = _take(
            q,
            tail_keys + own,
            tail_values + own,
            token.to(tl.int64),
            token < held,
            scale,
            best,
            total,
            acc,
            D,
            BLOCK_D,
            WIDE,
        )

    some = total > 0
    slot = (place * splits + split) * G + g
    lse = (best + tl.log2(tl.where(some, total, 1.0))) * 0.6931471805599453
    tl.store(lses + slot, tl.where(some, lse, float("-inf")), mask=g < G)
    acc = acc / tl.where(some, total, 1.0)[:, None]
    tl.store(outs + slot[:, None] * D + d[None, :], acc, mask=within)


def launch_sparse_attention(
    query: Tensor,
    layer: ChoosableLayer,
    units: Tensor,
    tail: tuple[Tensor, Tensor],
    past: Tensor,
    scale: float,
    space: SparseSpace,
    out: Tensor,
) -> Tensor:
    """See `kvz.kernels.sparse_attention.sparse_attention`.

    Raises ValueError where pairs of keys, values or tails are not stored one behind the other, the tail's keys and
    values not alike, or `space` or `units` are of other shapes.
    """
    query = query.contiguous()
    batch, heads, group, dim = query.shape
    splits = space.outs.shape[2]
    if space.outs.shape != (batch, heads, splits, group, dim) or units.shape[:2] != (batch, heads):
        raise ValueError(f"query {tuple(query.shape)}, space {tuple(space.outs.shape)}, units {tuple(units.shape)}")
    if units.shape[2] < layer.most or not units.is_contiguous():
        raise ValueError(f"units {tuple(units.shape)} are to be contiguous, {layer.most} a head")
    flat = layer.keys.is_contiguous() and layer.values.is_contiguous() and out.is_contiguous()
    if not flat or tail[0].stride() != tail[1].stride() or tail[0].stride()[2:] != (dim, 1):
        raise ValueError("keys, values, tails and output are to have rows that follow one another")
    config = configuration(dim, group, query.dtype)
    _sparse_attention[(splits, heads, batch)](
        query,
        layer.keys,
        layer.values,
        layer.starts,
        layer.lengths,
        layer.takes,
        units,
        *tail,
        past,
        space.outs,
        space.lses,
        scale * 1.4426950408889634,
        heads,
        layer.prefix,
        units.shape[2],
        splits,
        tail[0].stride(0),
        tail[0].stride(1),
        D=dim,
        BLOCK_D=triton.next_power_of_2(dim),
        G=group,
        ROWS=config.rows,
        PAIRS=config.pairs,
        SIZE=layer.size,
        WIDE=not query.is_cuda,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return launch_merge_splits(space.outs, space.lses, out)


def launches() -> Iterator[Launch]:
    """All head dimensions, with units of one token and of pages."""
    for dim in (64, 80, 96, 128, 256):
        for group, size in ((4, 1), (7, 4), (8, 16)) if dim == 128 else ((4, 4),):
            yield _launch(dim, torch.bfloat16, group, size)
    yield _launch(128, torch.float16, 4, 4)


def _launch(dim: int, dtype: torch.dtype, group: int, size: int) -> Launch:
    config = configuration(dim, group, dtype)
    arguments = {
        **dict.fromkeys(("query", "keys", "values", "tail_keys", "tail_values"), pointer(dtype)),
        "starts": pointer(torch.int64),
        **dict.fromkeys(("lengths", "takes", "units", "past"), pointer(torch.int32)),
        **dict.fromkeys(("outs", "lses"), pointer(torch.float32)),
        "scale": "fp32",
        **dict.fromkeys(("heads", "prefix", "most", "splits", "tail_b", "tail_h"), "i32"),
    }
    constants = {
        "D": dim,
        "BLOCK_D": triton.next_power_of_2(dim),
        "G": group,
        "ROWS": config.rows,
        "PAIRS": config.pairs,
        "SIZE": size,
        "WIDE": False,
    }
    name = f"sparse_attention d{dim} g{group} s{size} {dtype}".replace("torch.", "")
    aligned = frozenset(arguments) - {"scale", "heads", "prefix", "most", "splits"}
    return Launch(name, _sparse_attention, arguments, constants, config.warps, config.stages, aligned)
