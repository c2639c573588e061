"""Attention of a decode step over a prefix, chosen pairs and a tail, in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvz.kernels.cpu.compile import compiled
from kvz.kernels.cpu.element import as_array
from kvz.kernels.cpu.softmax import BLOCK, absorb, absorb_range, begin, finish
from kvz.kernels.cpu.tail_pairs import TailPairs
from kvz.kernels.tails import Tails

__all__ = ["ChosenStep"]


@dataclass(frozen=True, eq=False)
class ChosenStep:
    """A layer's pairs, `keys, values [sum,D]`; every token attends the first `prefix` ones of each head."""

    keys: NDArray[Any]
    values: NDArray[Any]
    begins: NDArray[np.int64]
    prefix: int

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, bounds: tuple[int, ...], prefix: int) -> ChosenStep:
        """Of flat pairs of which head h owns rows bounds[h]:bounds[h+1]."""
        return cls(as_array(keys), as_array(values), np.array(bounds[:-1], np.int64), prefix)

    def attend(self, query: Tensor, rows: Tensor, valid: Tensor, scale: float, tails: Tails) -> Tensor:
        """Attention of `query [H,B,G,D]`, B tokens, over `rows [H,B,K]` where `valid [H,B,K]`, prefix and tails.

        `valid` may have ones where `rows` has more. Returns `[H,B,G,D]` float32.
        """
        out = torch.empty(query.shape)
        scaled = (query.float() * scale).contiguous().numpy()
        own = TailPairs.of(tails)
        chosen = rows.masked_fill(~valid, -1).contiguous().numpy()
        _attend(
            scaled, self.keys, self.values, self.begins, self.prefix, chosen,
            own.keys, own.values, own.capacity, own.starts, own.lengths, out.numpy(),
        )  # fmt: skip
        return out


@compiled
def _attend(
    query: Any, keys: Any, values: Any, begins: Any, prefix: int, chosen: Any,
    tail_keys: Any, tail_values: Any, capacity: int, starts: Any, lengths: Any, out: Any,
) -> None:  # fmt: skip
    heads, tokens, group, dim = query.shape
    for item in numba.prange(heads * tokens):
        head, token = item // tokens, item % tokens
        scores = np.empty((group, BLOCK), np.float32)
        lse = np.empty(group, np.float32)
        total, state = begin(group, dim)
        own = query[head, token]
        absorb_range(own, keys, values, begins[head], begins[head] + prefix, scores, total, state)
        at = np.empty(BLOCK, np.int64)
        count = 0
        for row in chosen[head, token]:
            if row >= 0:
                at[count] = row
                count += 1
            if count == BLOCK:
                absorb(own, keys, values, at, count, scores, total, state)
                count = 0
        absorb(own, keys, values, at, count, scores, total, state)
        first = starts[token] + head * capacity
        absorb_range(own, tail_keys, tail_values, first, first + lengths[token], scores, total, state)
        finish(total, state, out[head, token], lse)
