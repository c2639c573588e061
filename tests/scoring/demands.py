"""Demands for the tests of allocations."""

from __future__ import annotations

import torch

from kvz.scoring.allocation import Demand
from kvz.scoring.budget import Budget


def demand_of(budget: Budget, layers: int, heads: int, length: int, protected: tuple[int, ...] = ()) -> Demand:
    """A demand over `layers` layers of `heads` heads, with some protected tokens."""
    mask = torch.zeros(length, dtype=torch.bool)
    mask[list(protected)] = True
    return Demand(budget, tuple(layer for layer in range(layers) for _ in range(heads)), mask)


def scores_of(shape: tuple[int, int, int], seed: int, distinct: int) -> torch.Tensor:
    """Random scores `[layers * heads, length]`, with many ties when `distinct` is small."""
    layers, heads, length = shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, distinct, (layers * heads, length), generator=generator).float() / distinct
