"""Products of tensor cores, which the interpreter is helped with: it takes bfloat16 for the integers that hold it."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_product"]


@triton.jit
def add_product(total, left, right, WIDE: tl.constexpr):
    """`total [M,N]` float32 and the product of `left [M,K]` and `right [K,N]` of one dtype.

    WIDE multiplies in float32 what is exact in it; it is for the interpreter, whose operands are on the CPU.
    """
    if WIDE:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total, input_precision="ieee")
