"""The best units of each head by their scores, as many as a head may take."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.kernels.device import has_triton

__all__ = ["plain_select_top", "select_top"]


def select_top(scores: Tensor, counts: Tensor, takes: Tensor, out: Tensor) -> Tensor:
    """Indices of the takes[h] largest of the first counts[h] of `scores [B,H,U]` float32, into `out [B,H,K]` int32.

    `counts, takes [H]` int32; no more than K or counts[h] are taken. A head's indices come first, in any order, then
    -1. Which of equal scores are taken is not said. Nothing waits for the device. By Triton for CUDA tensors.
    """
    if has_triton(scores):
        from kvz.kernels.triton.select_top import launch_select_top

        with torch.cuda.device_of(scores):
            return launch_select_top(scores, counts, takes, out)
    return plain_select_top(scores, counts, takes, out)


def plain_select_top(scores: Tensor, counts: Tensor, takes: Tensor, out: Tensor) -> Tensor:
    """The same by torch's topk."""
    units, most = scores.shape[2], out.shape[2]
    absent = torch.arange(units, device=scores.device) >= counts[:, None]
    least = torch.finfo(scores.dtype).min  # an infinite score is better than a unit that does not exist
    best = scores.clamp_min(least).masked_fill(absent, float("-inf")).topk(min(most, units), dim=2).indices
    taken = torch.arange(best.shape[2], device=scores.device) < torch.minimum(takes, counts)[:, None]
    out.fill_(-1)
    out[:, :, : best.shape[2]] = best.masked_fill(~taken, -1).int()
    return out
