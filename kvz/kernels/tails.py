"""Tails as the kernels of a decode step take them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Tails"]


@dataclass(frozen=True, eq=False)
class Tails:
    """What the tokens of a step see beside an archive: token b, all query heads, the first lengths[b] pairs of its own.

    `keys, values [R,H,N,D]` are views of the first N tokens of memory `[R,H,capacity,D]`; token b's pairs are in row
    rows[b] of it, or in row b if `rows` is empty.
    """

    keys: Tensor
    values: Tensor
    lengths: tuple[int, ...]
    rows: tuple[int, ...] = ()

    def part(self, first: int, last: int) -> Tails:
        """Those of the tokens first:last."""
        rows = self.rows or tuple(range(len(self.lengths)))
        return Tails(self.keys, self.values, self.lengths[first:last], rows[first:last])
