"""Shares as shades: eleven steps, of which the first is nothing at all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["STEPS", "Scale", "scale_of"]

STEPS = 10


@dataclass(frozen=True)
class Scale:
    """Shades of shares from 0 to `top`, a share in tenths."""

    top: float

    def step(self, share: float) -> int:
        """0 for a share of nothing, else 1 to STEPS, rounded up."""
        return min(STEPS, math.ceil(round(share / self.top * STEPS, 6)))

    @property
    def legend(self) -> list[tuple[int, str]]:
        """Every step, and the share in percent that it goes up to."""
        return [(step, f"{100 * self.top * step / STEPS:g}") for step in range(STEPS + 1)]


def scale_of(shares: Iterable[float]) -> Scale:
    """The scale that ends at the next tenth above the largest share, so that few pairs kept can be told apart too."""
    return Scale(max(1, math.ceil(round(10 * max(shares, default=0.0), 6))) / 10)
