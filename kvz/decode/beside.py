"""What lies beside an archive when new tokens attend it: a tail, or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kvz.kernels.tails import Tails

__all__ = ["Beside", "Part"]

Part = tuple[Tensor, Tensor]
"""Attention over some pairs: output `[H,G*n,D]` and log-sum-exp `[H,G*n]`."""


@dataclass(frozen=True, eq=False)
class Beside:
    """`part()` computes the attention over it; in a decode step a kernel may take in the `tails` itself instead."""

    part: Callable[[], Part]
    tails: Tails | None = None
