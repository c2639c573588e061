"""Softmax of each query head over a head's units, then the group's mean: by what units are chosen."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["plain_group_mean"]


def plain_group_mean(logits: Tensor, counts: Tensor) -> Tensor:
    """`logits [B,H,G,U]`, of which counts[h] in head h are units (`counts [H]`) -> `[B,H,U]`, zero where none is."""
    absent = torch.arange(logits.shape[3], device=logits.device) >= counts[:, None]
    weights = torch.softmax(logits.masked_fill(absent[:, None], float("-inf")), -1).mean(2)
    return weights.masked_fill(absent, 0)
