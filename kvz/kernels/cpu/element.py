"""Elements of tensors in a kernel: 16-bit floats, which numba does not know, and a fast exponential."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from kvz.kernels.cpu.compile import part

__all__ = ["as_array", "exp", "widen"]

_F, _INT = np.float32, ir.IntType(32)


def as_array(tensor: Tensor) -> NDArray[Any]:
    """The memory of a CPU tensor as an array whose element type tells `widen` what its bits mean.

    bfloat16 is uint16, float16 is int16; other dtypes are what they are.
    """
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    elif tensor.dtype == torch.float16:
        tensor = tensor.view(torch.int16)
    array: NDArray[Any] = tensor.numpy()
    return array


@intrinsic  # type: ignore[untyped-decorator]
def widen(context: Any, value: Any) -> Any:
    """An element of such an array as float32."""

    def from_bfloat16(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        high = builder.shl(builder.zext(arguments[0], _INT), ir.Constant(_INT, 16))
        return builder.bitcast(high, ir.FloatType())

    def from_float16(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _has_half(context):
            return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())
        return _half_by_integers(builder, builder.zext(arguments[0], _INT))

    def same(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0]

    made = {types.uint16: from_bfloat16, types.int16: from_float16, types.float32: same}
    return types.float32(value), made[value]


def _has_half(context: Any) -> bool:
    """Whether the processor widens float16 itself. LLVM calls a function that is not there for x86 without F16C, and
    ends the process."""
    triple, _, features = context.codegen().magic_tuple()
    return not triple.startswith(("x86", "i")) or "+f16c" in features


def _half_by_integers(builder: Any, half: Any) -> Any:
    """Exponent and fraction moved to their place, and the exponent's bias set right by a product; an infinity, and what
    is no number, by setting every bit of the exponent."""

    def constant(value: int) -> Any:
        return ir.Constant(_INT, value)

    sign = builder.shl(builder.and_(half, constant(0x8000)), constant(16))
    moved = builder.shl(builder.and_(half, constant(0x7FFF)), constant(13))
    to_the_112th = builder.bitcast(constant(0x77800000), ir.FloatType())
    finite = builder.bitcast(builder.fmul(builder.bitcast(moved, ir.FloatType()), to_the_112th), _INT)
    no_number = builder.or_(moved, constant(0x7F800000))
    is_finite = builder.icmp_unsigned("<", moved, constant(0x7C00 << 13))
    return builder.bitcast(builder.or_(sign, builder.select(is_finite, finite, no_number)), ir.FloatType())


@intrinsic  # type: ignore[untyped-decorator]
def _float_of_bits(context: Any, bits: Any) -> Any:
    def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), made


@part
def exp(x: Any) -> Any:
    """e^x for x <= 0 to a relative 4e-6, and 0 below -60: beside the weight 1 of the largest score that is nothing,
    and products with it would be denormal numbers, which are slow. Written so that loops over it vectorise."""
    y = max(x, _F(-60.0)) * _F(1.44269504)
    whole = np.floor(y)
    f = (y - whole) * _F(0.69314718)
    power = _F(1 / 5040)
    power = power * f + _F(1 / 720)
    power = power * f + _F(1 / 120)
    power = power * f + _F(1 / 24)
    power = power * f + _F(1 / 6)
    power = power * f + _F(0.5)
    power = power * f + _F(1.0)
    power = power * f + _F(1.0)
    return _F(0) if x < _F(-60.0) else power * _float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))
