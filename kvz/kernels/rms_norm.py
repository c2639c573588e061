"""RMS norms as transformers' models have them, in one launch on a GPU, where theirs take eight."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.kernels.device import has_triton

__all__ = ["plain_rms_norm", "rms_norm"]

_MOST = 1 << 14  # elements of a row, which one program holds


def rms_norm(rows: Tensor, weight: Tensor, eps: float, centred: bool) -> Tensor:
    """`rows [...,D]` divided by their root mean square, times `weight [D]`; of the rows' dtype, computed in float32.

    `centred` weights are kept as what they differ from 1 by (Gemma), and multiplied before the result is rounded;
    others are multiplied after. By Triton for 16-bit rows on a GPU, by torch otherwise; they differ by rounding.
    """
    sixteen_bits = rows.dtype in (torch.float16, torch.bfloat16) and weight.dtype == rows.dtype
    if sixteen_bits and rows.shape[-1] <= _MOST and rows.is_contiguous() and has_triton(rows):
        from kvz.kernels.triton.rms_norm import launch_rms_norm

        with torch.cuda.device_of(rows):
            return launch_rms_norm(rows, weight, eps, centred)
    return plain_rms_norm(rows, weight, eps, centred)


def plain_rms_norm(rows: Tensor, weight: Tensor, eps: float, centred: bool) -> Tensor:
    """The same in torch."""
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if centred:
        return (wide * (1.0 + weight.float())).to(rows.dtype)
    return weight * wide.to(rows.dtype)
