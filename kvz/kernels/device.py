"""Where the Triton kernels serve."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["takes_triton"]

_HEAD_DIMS = (16, 256)


def takes_triton(tensor: Tensor) -> bool:
    """Whether tensors like this one, `[...,D]` in 16 bits, are on a GPU that the kernels are made for: 8.0 or newer.

    Everything else has the plain torch forms.
    """
    if not tensor.is_cuda or tensor.dtype not in (torch.float16, torch.bfloat16):
        return False
    smallest, largest = _HEAD_DIMS
    return smallest <= tensor.shape[-1] <= largest and _serves(tensor.device.index)


@cache
def _serves(device: int) -> bool:
    built_for_nvidia = torch.version.cuda is not None
    return built_for_nvidia and find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)
