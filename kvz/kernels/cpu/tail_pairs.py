"""The pairs of tails in a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvz.kernels.cpu.element import as_array
from kvz.kernels.tails import Tails

__all__ = ["TailPairs"]


@dataclass(frozen=True, eq=False)
class TailPairs:
    """Flat `keys, values [R H capacity, D]`: head h of token b has lengths[b] pairs, from starts[b] + h capacity on."""

    keys: NDArray[Any]
    values: NDArray[Any]
    capacity: int
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, tails: Tails) -> TailPairs:
        """The same memory: nothing is copied."""
        batch, heads, _, dim = tails.keys.shape
        capacity = tails.keys.stride(1) // dim

        def flat(tensor: Tensor) -> NDArray[Any]:
            return as_array(tensor.as_strided((batch * heads * capacity, dim), (dim, 1)))

        starts = np.array(tails.rows or range(batch), np.int64) * (heads * capacity)
        return cls(flat(tails.keys), flat(tails.values), capacity, starts, np.array(tails.lengths, np.int64))
