"""Tensors with NaN around them in memory: what a kernel reads past an edge must not leak into its results."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["DEVICE", "surrounded"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def surrounded(tensor: Tensor, dim: int = -2) -> Tensor:
    """The same values on the device, as a view into a larger tensor that is full of NaN before and after in `dim`.

    -2 surrounds the rows of every head, 0 leaves a dense tensor dense. Aligned as a model's tensors are.
    """
    margin = 16
    shape = list(tensor.shape)
    shape[dim] += 2 * margin
    around = torch.full(shape, float("nan"), dtype=tensor.dtype, device=DEVICE)
    inside = around.narrow(dim, margin, tensor.shape[dim])
    inside.copy_(tensor)
    return inside
