"""Loading a block of keys or values as numbers, whatever they are stored as."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["load_pairs"]


@triton.jit
def load_pairs(
    stored,
    scale,
    zero,
    first,
    count,
    N: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Rows from `first` (int64) of `stored [sum,D]` as `[N,BLOCK_D]`; all but `count` are zero, and not read.

    With BITS 8 or 4 they are codes, as `kvz.kernels.flat_pairs` describes them, and come as numbers of type DTYPE; what
    lies behind dimension D then is some finite number.
    """
    # Only the first may be far away: inside a block 32 bits are enough, and take half the registers.
    row = tl.arange(0, N)[:, None]
    seen = row < count
    if BITS == 16:
        d = tl.arange(0, BLOCK_D)[None, :]
        if D < BLOCK_D:
            seen = seen & (d < D)
        found = tl.load(stored + first * D + (row * D + d), mask=seen, other=0.0)
    else:
        GROUPS: tl.constexpr = (D + GROUP - 1) // GROUP
        codes = _codes(stored + first * (D * BITS // 8), row, seen, D * BITS // 8, BLOCK_D * BITS // 8, BITS)
        g = tl.arange(0, BLOCK_D // GROUP)[None, :]
        of_group = row * GROUPS + g
        held = seen & (g < GROUPS)
        step = tl.load(scale + first * GROUPS + of_group, mask=held, other=0.0).to(tl.float32)
        low = tl.load(zero + first * GROUPS + of_group, mask=held, other=0.0).to(tl.float32)
        steps = tl.reshape(codes, (N, BLOCK_D // GROUP, GROUP)).to(tl.float32)
        found = tl.reshape(low[:, :, None] + step[:, :, None] * steps, (N, BLOCK_D)).to(DTYPE)
    return found


@triton.jit
def _codes(stored, row, seen, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr):
    """Rows of WIDTH bytes as codes, one or two a byte: `[N,8/BITS BLOCK]` uint8."""
    byte = tl.arange(0, BLOCK)[None, :]
    codes = tl.load(stored + (row * WIDTH + byte), mask=seen & (byte < WIDTH), other=0)
    if BITS == 4:
        codes = tl.interleave(codes & 15, codes >> 4)
    return codes
