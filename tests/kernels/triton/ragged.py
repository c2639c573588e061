"""Ragged layers for tests of kernels, and buffers that are poisoned so that what should not be read is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedLayer
from kvz.kernels.score_space import ScoreSpace

__all__ = ["poisoned", "random_layer"]


def random_layer(lengths: Sequence[int], dim: int, dtype: torch.dtype = torch.float32) -> RaggedLayer:
    """A layer of heads of so many random pairs."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    keys, values = (torch.randn(int(offsets[-1]), dim).to(dtype) for _ in range(2))
    return RaggedLayer(keys, values, offsets, torch.zeros(len(keys), dtype=torch.int32))


def poisoned(space: ScoreSpace) -> ScoreSpace:
    """Filled with NaN, and with row numbers that exist nowhere."""
    for field in fields(space):
        tensor: Tensor = getattr(space, field.name)
        tensor.fill_(float("nan") if tensor.is_floating_point() else 1 << 30)
    return space
