"""A whole sparse step by a bit-plane index: scoring, choosing and attending, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvz.kernels.cpu.chosen_step import ChosenStep
from kvz.kernels.cpu.compile import compiled, part
from kvz.kernels.cpu.plane_scores import PlaneScores, score_head
from kvz.kernels.cpu.softmax import BLOCK, absorb, absorb_range, begin, finish
from kvz.kernels.cpu.tail_pairs import TailPairs
from kvz.kernels.tails import Tails

__all__ = ["PlaneStep"]


@dataclass(frozen=True, eq=False)
class PlaneStep:
    """A layer's pairs and its index; takes[h] of head h's pairs are attended, chosen for each token by their scores."""

    pairs: ChosenStep
    index: PlaneScores
    takes: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: ChosenStep, index: PlaneScores, takes: Sequence[int]) -> PlaneStep:
        """Of a layer's pairs and index."""
        return cls(pairs, index, np.array(takes, np.int64))

    def attend(self, query: Tensor, scale: float, tails: Tails) -> Tensor:
        """Attention of `query [H,B,G,D]`, B tokens, over prefix, choice and tails: `[H,B,G,D]` float32."""
        out = torch.empty(query.shape)
        scaled = (query.float() * scale).contiguous().numpy()
        own, pairs, index = TailPairs.of(tails), self.pairs, self.index
        _attend(
            scaled, pairs.keys, pairs.values, pairs.begins, pairs.prefix,
            index.planes, index.ranges, index.bounds, index.rows, index.lengths, self.takes,
            own.keys, own.values, own.capacity, own.starts, own.lengths, out.numpy(),
        )  # fmt: skip
        return out


@compiled
def _attend(
    query: Any, keys: Any, values: Any, begins: Any, prefix: int,
    planes: Any, ranges: Any, bounds: Any, rows: Any, counts: Any, takes: Any,
    tail_keys: Any, tail_values: Any, capacity: int, starts: Any, lengths: Any, out: Any,
) -> None:  # fmt: skip
    heads, tokens, group, dim = query.shape
    for item in numba.prange(heads * tokens):
        head, token = item // tokens, item % tokens
        own = query[head, token]
        chosen = np.empty(takes[head], np.int64)
        scores = np.empty(counts[head], np.float32)
        score_head(own, planes, ranges[head], bounds[head], bounds[head + 1], rows[head], scores)
        taken = _best(scores, begins[head] + prefix, chosen)
        room = np.empty((group, BLOCK), np.float32)
        lse = np.empty(group, np.float32)
        total, state = begin(group, dim)
        absorb_range(own, keys, values, begins[head], begins[head] + prefix, room, total, state)
        for start in range(0, taken, BLOCK):
            count = min(BLOCK, taken - start)
            absorb(own, keys, values, chosen[start : start + count], count, room, total, state)
        first = starts[token] + head * capacity
        absorb_range(own, tail_keys, tail_values, first, first + lengths[token], room, total, state)
        finish(total, state, out[head, token], lse)


@part
def _best(scores: Any, first: int, chosen: Any) -> int:
    """Fill `chosen [K]` with first + j for the K largest scores[j], in order, of equal ones the earliest."""
    count = min(len(chosen), len(scores))
    if count == 0:
        return 0
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = 0
    for j in range(len(scores)):
        above += scores[j] > least
    equal = count - above  # of those at the edge, so many are taken
    found = 0
    for j in range(len(scores)):
        if found < count and (scores[j] > least or (scores[j] == least and equal > 0)):
            equal -= scores[j] == least
            chosen[found] = first + j
            found += 1
    return found
