"""Memory for the scores of one step, allocated once, so that steps can be captured in a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ALIGNED", "ScoreSpace", "padded_group", "padded_to"]

ALIGNED = 16
"""Units to which an index's rows are padded, and at which a block of one begins: loads of 16 bytes need it."""

_FEWEST = 64  # units of a block: how many parts a head's softmax may be computed in


@dataclass(frozen=True, eq=False)
class ScoreSpace:
    """What scoring `most` units of each of H heads for B questions writes, whoever scores them.

    `rows [B,H,R]` int32 and `weights [B,H,2 P,R]` are the rows of the index that are read and what they are multiplied
    with, `factors, biases [B,H,P]` what follows; `logits [B,H,G,U]`, and `peaks, sums [B,H,G,parts]` of their
    softmax in parts; `scores [B,H,U]`, U being `most` padded to a multiple of 16. All float32 but the weights, which
    have the dtype that products are made in.
    """

    rows: Tensor
    weights: Tensor
    factors: Tensor
    biases: Tensor
    logits: Tensor
    peaks: Tensor
    sums: Tensor
    scores: Tensor

    @classmethod
    def of(
        cls, batch: int, heads: int, group: int, rows: int, most: int, dtype: torch.dtype, device: torch.device
    ) -> ScoreSpace:
        """Room for `rows` rows a head and `most` units of the longest head; products in `dtype`."""
        wide, padded, units = padded_to(max(1, rows), ALIGNED), padded_group(group), padded_to(max(1, most), ALIGNED)
        parts = (most + ALIGNED) // _FEWEST + 1

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(batch, heads, *shape, dtype=dtype, device=device)

        return cls(
            room(wide, dtype=torch.int32),
            room(2 * padded, wide, dtype=dtype),
            room(padded),
            room(padded),
            room(group, units),
            room(group, parts),
            room(group, parts),
            room(units),
        )

    def check(self, query: Tensor, rows: int, most: int) -> None:
        """Raise ValueError where this is no room for `query [B,H,G,D]`, so many rows and units."""
        if query.shape[:3] != self.logits.shape[:3] or rows > self.rows.shape[2] or most > self.scores.shape[2]:
            held = (*self.logits.shape[:3], self.rows.shape[2], self.scores.shape[2])
            raise ValueError(f"room for {held} is none for {(*query.shape[:3], rows, most)}: [B,H,G], rows and units")


def padded_group(group: int) -> int:
    """Rows that a GQA group takes in a product: at least 8, a power of two."""
    return max(8, 1 << (group - 1).bit_length())


def padded_to(count: int, multiple: int) -> int:
    """The next multiple."""
    return -(-count // multiple) * multiple
