"""Scores of a bit-plane index for a decode step: which rows of bits weigh most, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvz.cache.bit_planes import BitPlanes
from kvz.kernels.cpu.compile import compiled, part
from kvz.kernels.cpu.element import exp

__all__ = ["PlaneScores", "score_head"]

_F = np.float32


@dataclass(frozen=True, eq=False)
class PlaneScores:
    """A layer's index, as `BitPlanes` has it: `planes [bits D, bytes]`, `ranges [H,D]`, `bounds [H+1]`.

    Of head h, which has lengths[h] tokens, rows[h] rows are read; none of a head that is taken whole.
    """

    planes: NDArray[np.uint8]
    ranges: NDArray[np.float32]
    bounds: NDArray[np.int64]
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, index: BitPlanes, rows: Sequence[int], lengths: Sequence[int]) -> PlaneScores:
        """Of a layer's index; the same memory."""
        bounds, counts, tokens = (np.array(numbers, np.int64) for numbers in (index.bounds, rows, lengths))
        return cls(index.planes.numpy(), index.ranges.numpy(), bounds, counts, tokens)

    def score(self, query: Tensor, scale: float) -> Tensor:
        """For `query [H,n,G,D]` the mean over the group of the softmax of approximate scores, `[H,n,longest]` float32.

        Behind the tokens of a head the scores are -inf.
        """
        heads, tokens = query.shape[:2]
        scores = torch.full((heads, tokens, int(self.lengths.max())), float("-inf"))
        scaled = (query.float() * scale).contiguous().numpy()
        _score(scaled, self.planes, self.ranges, self.bounds, self.rows, self.lengths, scores.numpy())
        return scores


@compiled
def _score(query: Any, planes: Any, ranges: Any, bounds: Any, rows: Any, lengths: Any, scores: Any) -> None:
    heads, tokens = query.shape[:2]
    for item in numba.prange(heads * tokens):
        head, token = item // tokens, item % tokens
        into = scores[head, token, : lengths[head]]
        score_head(query[head, token], planes, ranges[head], bounds[head], bounds[head + 1], rows[head], into)


@part
def score_head(query: Any, planes: Any, ranges: Any, first: int, last: int, rows: int, scores: Any) -> None:
    """One head's `scores [L]` for `query [G,D]`, which is scaled, by its bytes first:last; 0 where no row is read."""
    group, dim = query.shape
    bits = planes.shape[0] // dim
    scores[:] = 0
    if rows == 0:
        return
    weights = np.empty((group, bits * dim), np.float32)
    for b in range(bits):
        for g in range(group):
            for d in range(dim):
                weights[g, b * dim + d] = query[g, d] * ranges[d] * _F(0.5 ** (b + 1))
    logits = _sums(planes, first, last, _heaviest(weights, rows), weights)
    for g in range(group):
        _add_softmax(logits[g], len(scores), _F(1.0 / group), scores)


@part
def _heaviest(weights: Any, count: int) -> Any:
    """The `count` columns of `weights [G,W]` with the largest sum of absolute values."""
    sums = np.zeros(weights.shape[1], np.float32)
    for g in range(weights.shape[0]):
        for w in range(weights.shape[1]):
            sums[w] += abs(weights[g, w])
    least = np.partition(sums, len(sums) - count)[len(sums) - count]
    chosen = np.arange(count)  # valid whatever follows: scores that are NaN compare with nothing
    found = 0
    for equal in (False, True):
        for w in range(len(sums)):
            if found < count and (sums[w] == least if equal else sums[w] > least):
                chosen[found] = w
                found += 1
    return chosen


@part
def _sums(planes: Any, first: int, last: int, chosen: Any, weights: Any) -> Any:
    """What the set bits of the chosen rows weigh, `[G, 8, bytes]`: token 8 k + t is at [t, k].

    Four rows at a time become numbers, once for the whole group; loops run over bytes, which vectorises.
    """
    group, count = len(weights), last - first
    sums = np.zeros((group, 8, count), np.float32)
    bits = np.zeros((4, count), np.float32)
    for i in range(0, len(chosen), 4):
        rows = min(4, len(chosen) - i)
        for t in range(8):
            for r in range(rows):
                _unpack(planes[chosen[i + r], first:last], t, bits[r])
            for g in range(group):
                _add(bits, weights[g], chosen[i : i + rows], sums[g, t])
    return sums


@part
def _unpack(row: Any, t: int, bits: Any) -> None:
    """Bit t of every byte as 0 or 1."""
    for k in range(len(row)):
        bits[k] = _F((np.int32(row[k]) >> np.int32(t)) & np.int32(1))


@part
def _add(bits: Any, weights: Any, chosen: Any, into: Any) -> None:
    """Add up to four rows of bits, each times its weight."""
    a = weights[chosen[0]]
    b = weights[chosen[1]] if len(chosen) > 1 else _F(0)
    c = weights[chosen[2]] if len(chosen) > 2 else _F(0)
    d = weights[chosen[3]] if len(chosen) > 3 else _F(0)
    row0, row1, row2, row3 = bits[0], bits[1], bits[2], bits[3]
    for k in range(len(into)):
        into[k] += (a * row0[k] + b * row1[k]) + (c * row2[k] + d * row3[k])


@part
def _add_softmax(logits: Any, length: int, share: Any, scores: Any) -> None:
    """Add a softmax of `logits [8, bytes]`, as `_sums` has them, to scores[:length]."""
    whole, rest = length // 8, length % 8
    top = logits[0, 0]
    for t in range(8):
        for k in range(whole + (t < rest)):
            top = max(top, logits[t, k])
    total = _F(0)
    for t in range(8):
        of_bit = logits[t]
        for k in range(whole + (t < rest)):
            weight = exp(of_bit[k] - top)
            of_bit[k] = weight
            total += weight
    for t in range(8):
        for k in range(whole + (t < rest)):
            scores[8 * k + t] += share / total * logits[t, k]
