"""PyramidKV (arXiv 2406.02069): SnapKV's scores from a short window, with more budget for the first layers."""

from __future__ import annotations

from dataclasses import dataclass

from kvz.scoring.allocation import Allocation
from kvz.scoring.pyramid import Pyramid
from kvz.scoring.snapkv import SnapKV

__all__ = ["PyramidKV"]


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """SnapKV with a window of 8, and the pyramid allocation."""

    window: int = 8

    @property
    def name(self) -> str:
        return "pyramidkv"

    def allocation(self) -> Allocation:
        return Pyramid()
