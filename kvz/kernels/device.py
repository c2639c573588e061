"""Where the Triton kernels serve."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["has_triton", "multiprocessors", "takes_triton"]

_HEAD_DIMS = (16, 256)


def takes_triton(tensor: Tensor) -> bool:
    """Whether tensors like this one, `[...,D]` in 16 bits, are on a GPU that the kernels are made for: 8.0 or newer.

    Everything else has the plain torch forms.
    """
    smallest, largest = _HEAD_DIMS
    sixteen_bits = tensor.dtype in (torch.float16, torch.bfloat16)
    return sixteen_bits and smallest <= tensor.shape[-1] <= largest and has_triton(tensor)


def has_triton(tensor: Tensor) -> bool:
    """Whether a tensor, of any dtype and shape, is on such a GPU."""
    return tensor.is_cuda and _serves(tensor.device.index)


def multiprocessors(device: torch.device) -> int | None:
    """Multiprocessors of a GPU; None for other devices."""
    if device.type != "cuda":
        return None
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@cache
def _serves(device: int) -> bool:
    built_for_nvidia = torch.version.cuda is not None
    return built_for_nvidia and find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)
