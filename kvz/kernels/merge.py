"""Merging attention over disjoint sets of keys by log-sum-exp."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["merge_parts", "merge_stacked"]


def merge_parts(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over the union of the parts' keys.

    `parts` holds (output `[...,D]`, log-sum-exp `[...]`) of attention over disjoint key sets, same rows. Returns the
    same pair for all the keys: the output in the parts' dtype, accumulated in float32, and the log-sum-exp in float32.
    """
    if len(parts) == 1:
        return parts[0]
    lse = torch.logsumexp(torch.stack([part[1] for part in parts]), 0)
    total: Tensor | None = None
    for out, part_lse in parts:
        weighted = out.float() * torch.exp(part_lse - lse).unsqueeze(-1)
        total = weighted if total is None else total.add_(weighted)
    assert total is not None
    return total.to(parts[0][0].dtype), lse


def merge_stacked(outs: Tensor, lses: Tensor) -> Tensor:
    """The same for parts stacked along dimension 1: `outs [H,P,R,D]`, `lses [H,P,R]` float32 -> `[H,R,D]` float32.

    A part that does not exist has log-sum-exp -inf and finite (say zero) output.
    """
    weights = torch.softmax(lses, 1)
    return (outs * weights.unsqueeze(-1)).sum(1)
