"""Linear layers whose weights stay as the file has them, whatever the rows are computed in."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from kvz.kernels.decode_step import compiles

__all__ = ["FEW_ROWS", "MANY_ROWS", "fast_bfloat16", "linear"]

FEW_ROWS = 16
"""On a CPU, up to so many rows a kernel that reads the matrix once is faster than widening it for the BLAS."""

MANY_ROWS = 256
"""From so many rows on they are rounded to bfloat16, where the CPU multiplies that: prefills, not questions."""


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows [R,K]` times the transpose of `weight [N,K]`, plus `bias [N]`: `[R,N]` in the dtype of the rows.

    Under float32 rows, weights of 16 bits are widened: in registers for a few rows on a CPU, else all at once. Where
    the CPU multiplies bfloat16, many rows are rounded to it instead: four times as fast, on an AVX-512 processor.
    """
    if weight.dtype == rows.dtype:
        return functional.linear(rows, weight, None if bias is None else bias.to(rows.dtype))
    if rows.shape[0] <= FEW_ROWS and rows.dtype == torch.float32 and compiles(weight):
        from kvz.kernels.cpu.gemv import gemv

        out = gemv(rows, weight)
    elif (
        rows.shape[0] >= MANY_ROWS
        and weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and fast_bfloat16()
    ):
        out = functional.linear(rows.bfloat16(), weight).to(rows.dtype)
    else:
        out = functional.linear(rows, weight.to(rows.dtype))
    return out if bias is None else out.add_(bias)


@cache
def fast_bfloat16() -> bool:
    """Whether this CPU has instructions that multiply bfloat16, and oneDNN, which torch leaves it to, may use them."""
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    probes = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    return any(probe() for probe in probes if probe is not None)
