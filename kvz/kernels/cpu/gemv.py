"""Products of a few rows with a matrix of 16-bit floats, which is read once and widened in registers."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from kvz.kernels.cpu.compile import compiled, part
from kvz.kernels.cpu.element import as_array, widen

__all__ = ["gemv", "product"]

_F = np.float32
_ROWS = 16  # of the matrix, that a thread takes at a time


def gemv(rows: Tensor, weight: Tensor) -> Tensor:
    """`rows [R,K]` float32 times the transpose of `weight [N,K]`, of any float dtype: `[R,N]` float32."""
    out = torch.empty(rows.shape[0], weight.shape[0])
    _gemv(rows.contiguous().numpy(), as_array(weight), out.numpy())
    return out


@part
def product(rows: Any, weight: Any, first: int, last: int, out: Any) -> None:
    """Columns first:last of `out [R,N]`: `rows [R,K]` times those rows of `weight [N,K]`.

    Four rows at a time, the last one again where there are fewer: reading the matrix takes longer, and a row's sums
    are added up in one order whatever stands beside it.
    """
    count, length = rows.shape
    for n in range(first, last):
        for r in range(0, count, 4):
            r1, r2, r3 = min(r + 1, count - 1), min(r + 2, count - 1), min(r + 3, count - 1)
            a, b, c, d = _F(0), _F(0), _F(0), _F(0)
            for k in range(length):
                w = widen(weight[n, k])
                a += rows[r, k] * w
                b += rows[r1, k] * w
                c += rows[r2, k] * w
                d += rows[r3, k] * w
            out[r, n], out[r1, n], out[r2, n], out[r3, n] = a, b, c, d


@compiled
def _gemv(rows: Any, weight: Any, out: Any) -> None:
    blocks = (weight.shape[0] + _ROWS - 1) // _ROWS
    for block in numba.prange(blocks):
        product(rows, weight, block * _ROWS, min(block * _ROWS + _ROWS, weight.shape[0]), out)
