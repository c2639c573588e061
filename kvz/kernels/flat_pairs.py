"""One layer's pairs as attention reads them: flat, head after head, in the model's dtype or as codes of 8 or 4 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FlatPairs", "Grid"]


@dataclass(frozen=True, eq=False)
class Grid:
    """What codes mean: `scale, zero [sum, ceil(D/group)]`, a number being zero + scale * code of its row and group."""

    scale: Tensor
    zero: Tensor


@dataclass(frozen=True, eq=False)
class FlatPairs:
    """`keys, values [sum,D]`; with `bits` 8 uint8 codes, with 4 two codes a byte, `[sum,D/2]`, the even one lowest.

    Codes have a `Grid` for keys and one for values, each row cut into groups of `group` dimensions, 32 or 64.
    """

    keys: Tensor
    values: Tensor
    bits: int = 16
    group: int = 32
    key_grid: Grid | None = None
    value_grid: Grid | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where codes have no grid, or for other numbers of bits or dimensions a group."""
        if self.bits not in (16, 8, 4) or self.group not in (32, 64):
            raise ValueError(f"pairs of {self.bits} bits in groups of {self.group} are not known")
        if self.bits < 16 and (self.key_grid is None or self.value_grid is None):
            raise ValueError("codes need a grid")

    @property
    def dim(self) -> int:
        """D."""
        return self.keys.shape[1] * (2 if self.bits == 4 else 1)

    def numbers(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values `[sum,D]`: the stored ones, or what the codes mean, in `dtype`."""
        if self.key_grid is None or self.value_grid is None:
            return self.keys, self.values
        return self._meant(self.keys, self.key_grid, dtype), self._meant(self.values, self.value_grid, dtype)

    def _meant(self, codes: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
        if self.bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], 2).flatten(1)
        scale, zero = (t.float().repeat_interleave(self.group, 1)[:, : self.dim] for t in (grid.scale, grid.zero))
        return (zero + scale * codes).to(dtype)
