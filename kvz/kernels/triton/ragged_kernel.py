"""The kernel of split-K attention over ragged pairs and tails; `kvz.kernels.triton.ragged_attention` launches it.

Products take operands in the model's dtype and add up in float32; weights are powers of 2, so `scale` holds log2(e).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvz.kernels.triton.load_pairs import load_pairs

__all__ = ["ragged_attention_kernel"]


@triton.jit
def _over_pairs(q, keys, key_scale, key_zero, values, value_scale, value_zero, first, count, sees, scale,
    BLOCK_N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Attention of `q [M,BLOCK_D]` over `count` pairs from `first` (int64) on.

    Row m sees the first `sees[m]` of them; None: all. Returns the largest score `[M]` in units of log 2, and over it
    the sum of weights `[M]` and of weighted values.
    """
    best = tl.full([q.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([q.shape[0]], tl.float32)
    acc = tl.zeros(q.shape, tl.float32)
    j = tl.arange(0, BLOCK_N)[None, :]
    for done in range(0, count, BLOCK_N):
        left = count - done
        k = load_pairs(keys, key_scale, key_zero, first + done, left, BLOCK_N, D, BLOCK_D, BITS, GROUP, q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = j < left
        if sees is not None:
            seen = seen & (j < (sees - done)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(best, tl.max(scores, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(best - base)
        total = total * fade + tl.sum(weights, 1)
        v = load_pairs(values, value_scale, value_zero, first + done, left, BLOCK_N, D, BLOCK_D, BITS, GROUP, q.dtype)
        acc = tl.dot(weights.to(q.dtype), v, acc * fade[:, None], input_precision="ieee")
        best = new
    return best, total, acc


@triton.jit
def _leave(outs, lses, first_row, r, held, best, total, acc, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write rows `r [M]` of a result that are `held [M]`; without a pair the log-sum-exp is -inf, and no output."""
    d = tl.arange(0, BLOCK_D)[None, :]
    some = total > 0
    total = tl.where(some, total, 1.0)
    lse = (best + tl.log2(total)) * 0.6931471805599453
    tl.store(lses + first_row + r, tl.where(some, lse, float("-inf")), mask=held)
    tl.store(outs + first_row * D + (r[:, None] * D + d), acc / total[:, None], mask=(held & some)[:, None] & (d < D))


@triton.jit
def _tail_unit(
    unit,
    query,
    keys,
    values,
    past,
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
    tail_blocks,
    splits,
    tail_slot,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One of `splits` equal parts of what a block of one question's rows sees of its tail."""
    split = unit % splits
    block = unit // splits % tail_blocks
    head = unit // (splits * tail_blocks) % heads
    b = unit // (splits * tail_blocks * heads)
    d = tl.arange(0, BLOCK_D)[None, :]
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    held = m < group * tokens
    at = b * query_b + (head * group + m // tokens) * query_h + m % tokens * query_n
    q = tl.load(query + at[:, None] + d, mask=held[:, None] & (d < D), other=0.0)
    sees = tl.load(past + b) + m % tokens + 1
    length = tl.max(tl.where(held, sees, 0), 0)
    share = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    first = split * share
    count = tl.minimum(share, length - first)
    base = b.to(tl.int64) * tail_b + head.to(tl.int64) * tail_h
    best, total, acc = _over_pairs(
        q, keys + base, None, None, values + base, None, None, first.to(tl.int64), count, sees - first, scale,
        BLOCK_N, D, BLOCK_D, 16, 32,
    )  # fmt: skip
    first_row = (tail_slot + head * splits + split).to(tl.int64) * rows + b * group * tokens
    _leave(outs, lses, first_row, m, held, best, total, acc, D, BLOCK_D)


@triton.jit(
    do_not_specialize=[
        "heads", "group", "tokens", "rows", "row_blocks", "tail_units", "tail_blocks", "splits", "tail_slot",
    ]
)  # fmt: skip
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
    unit = tl.program_id(0)
    if unit < tail_units:
        if tail_keys is not None:
            _tail_unit(
                unit, query, tail_keys, tail_values, past, outs, lses, query_b, query_h, query_n, tail_b, tail_h, scale,
                heads, group, tokens, rows, tail_blocks, splits, tail_slot, D, BLOCK_D, TAIL_M, BLOCK_N,
            )  # fmt: skip
    else:
        program = (unit - tail_units) // row_blocks
        r = (unit - tail_units) % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
        held = r < rows
        d = tl.arange(0, BLOCK_D)[None, :]
        b, m = r // (group * tokens), r % (group * tokens)
        of_row = b * query_b + m // tokens * query_h + m % tokens * query_n
        for s in range(tl.load(programs + program), tl.load(programs + program + 1)):
            head = tl.load(segments + 4 * s)
            first = tl.load(segments + 4 * s + 1)
            last = tl.load(segments + 4 * s + 2)
            slot = tl.load(segments + 4 * s + 3)
            at = head * group * query_h + of_row
            q = tl.load(query + at[:, None] + d, mask=held[:, None] & (d < D), other=0.0)
            best, total, acc = _over_pairs(
                q, keys, key_scale, key_zero, values, value_scale, value_zero, first.to(tl.int64), last - first, None,
                scale, BLOCK_N, D, BLOCK_D, BITS, GROUP,
            )  # fmt: skip
            _leave(outs, lses, slot.to(tl.int64) * rows, r, held, best, total, acc, D, BLOCK_D)
