"""Linear layers whose weights stay as the file has them, whatever the rows are computed in."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kvz.kernels.decode_step import compiles

__all__ = ["linear"]

_FEW = 16  # rows: up to so many, a kernel that reads the matrix once is faster than widening it for the BLAS


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows [R,K]` times the transpose of `weight [N,K]`, plus `bias [N]`: `[R,N]` in the dtype of the rows.

    Weights of 16 bits under float32 rows are widened: in registers for a few rows on a CPU, else all at once.
    """
    if weight.dtype == rows.dtype:
        return functional.linear(rows, weight, bias)
    if rows.shape[0] <= _FEW and rows.dtype == torch.float32 and compiles(weight):
        from kvz.kernels.cpu.gemv import gemv

        out = gemv(rows, weight)
        return out if bias is None else out.add_(bias)
    return functional.linear(rows, weight.to(rows.dtype), bias)
