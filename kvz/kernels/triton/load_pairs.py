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
    rows,
    seen,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """`rows [N]` of `stored [sum,D]` as `[N,BLOCK_D]`; rows that are not `seen [N]` are zero, and not read.

    With BITS 8 or 4 they are codes, as `kvz.kernels.flat_pairs` describes them, and come as numbers of type DTYPE; what
    lies behind dimension D then is some finite number.
    """
    rows = rows.to(tl.int64)[:, None]
    seen = seen[:, None]
    if BITS == 16:
        d = tl.arange(0, BLOCK_D)[None, :]
        return tl.load(stored + rows * D + d, mask=seen & (d < D), other=0.0)
    else:
        N: tl.constexpr = rows.shape[0]
        GROUPS: tl.constexpr = BLOCK_D // GROUP
        STORED_GROUPS: tl.constexpr = (D + GROUP - 1) // GROUP
        WIDTH: tl.constexpr = D * BITS // 8
        byte = tl.arange(0, BLOCK_D * BITS // 8)[None, :]
        codes = tl.load(stored + rows * WIDTH + byte, mask=seen & (byte < WIDTH), other=0)
        if BITS == 4:
            codes = tl.interleave(codes & 15, codes >> 4)
        g = tl.arange(0, GROUPS)[None, :]
        of_group = rows * STORED_GROUPS + g
        held = seen & (g < STORED_GROUPS)
        step = tl.load(scale + of_group, mask=held, other=0.0).to(tl.float32)
        low = tl.load(zero + of_group, mask=held, other=0.0).to(tl.float32)
        steps = tl.reshape(codes, (N, GROUPS, GROUP)).to(tl.float32)
        return tl.reshape(low[:, :, None] + step[:, :, None] * steps, (N, BLOCK_D)).to(DTYPE)
