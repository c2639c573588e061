"""Ada-KV (arXiv 2407.11550): SnapKV's scores, each layer's budget shared by one top-k over its heads."""

from __future__ import annotations

from dataclasses import dataclass

from kvz.scoring.allocation import AdaKV as AdaKVAllocation
from kvz.scoring.allocation import Allocation
from kvz.scoring.snapkv import SnapKV

__all__ = ["AdaKV"]


@dataclass(frozen=True)
class AdaKV(SnapKV):
    """SnapKV with Ada-KV's allocation. The paper takes the window's mean where SnapKV sums: the order is the same."""

    @property
    def name(self) -> str:
        return "adakv"

    def allocation(self) -> Allocation:
        return AdaKVAllocation()
