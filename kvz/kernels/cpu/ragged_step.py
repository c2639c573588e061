"""Dense attention of a decode step: a few query rows over all pairs of ragged heads and over a tail, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvz.kernels.cpu.compile import compiled, part
from kvz.kernels.cpu.element import as_array, exp
from kvz.kernels.cpu.softmax import BLOCK, absorb_range, begin, finish
from kvz.kernels.cpu.tail_pairs import TailPairs
from kvz.kernels.tails import Tails

__all__ = ["RaggedStep"]


@dataclass(frozen=True, eq=False)
class RaggedStep:
    """A layer's pairs, `keys, values [sum,D]`, cut into equal shares, `programs` of them, for the threads.

    `segments [S,3]`: head, first and last row, in shares[p]:shares[p + 1] those of program p; `slots [H+1]`: where the
    segments of each head begin, for they are in the order of the heads.
    """

    keys: NDArray[Any]
    values: NDArray[Any]
    segments: NDArray[np.int64]
    shares: NDArray[np.int64]
    slots: NDArray[np.int64]

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, bounds: Sequence[int], programs: int) -> RaggedStep:
        """Of flat pairs of which head h owns rows bounds[h]:bounds[h+1]."""
        edges = [bounds[-1] * p // programs for p in range(programs + 1)]
        segments, shares, slots = [], [0] * (programs + 1), [0]
        for head, (first, last) in enumerate(pairwise(bounds)):
            cuts = [first, *(edge for edge in edges if first < edge < last), last]
            segments += [(head, a, b) for a, b in pairwise(cuts) if a < b]
            slots.append(len(segments))
        for p, edge in enumerate(edges):
            shares[p] = sum(first < edge for _, first, _ in segments)
        table = np.array(segments, np.int64).reshape(-1, 3)
        return cls(as_array(keys), as_array(values), table, np.array(shares), np.array(slots))

    def attend(self, query: Tensor, scale: float, tails: Tails) -> Tensor:
        """Attention of `query [H,B,G,D]`, B tokens, over the pairs and each token's tail: `[H,B,G,D]` float32."""
        out = torch.empty(query.shape)
        scaled = (query.float() * scale).contiguous().numpy()
        own = TailPairs.of(tails)
        _attend(
            scaled, self.keys, self.values, self.segments, self.shares, self.slots,
            own.keys, own.values, own.capacity, own.starts, own.lengths, out.numpy(),
        )  # fmt: skip
        return out


@compiled
def _attend(
    query: Any, keys: Any, values: Any, segments: Any, shares: Any, slots: Any,
    tail_keys: Any, tail_values: Any, capacity: int, starts: Any, lengths: Any, out: Any,
) -> None:  # fmt: skip
    heads, tokens, group, dim = query.shape
    programs, count, rows = len(shares) - 1, len(segments), tokens * group
    outs = np.empty((count + heads, rows, dim), np.float32)
    lses = np.empty((count + heads, rows), np.float32)
    for p in numba.prange(programs):
        scores = np.empty((rows, BLOCK), np.float32)
        for s in range(shares[p], shares[p + 1]):
            total, state = begin(rows, dim)
            of_head = query[segments[s, 0]].reshape(rows, dim)
            absorb_range(of_head, keys, values, segments[s, 1], segments[s, 2], scores, total, state)
            finish(total, state, outs[s], lses[s])
        for item in range(p, heads * tokens, programs):
            head, token = item // tokens, item % tokens
            total, state = begin(group, dim)
            first = starts[token] + head * capacity
            last = first + lengths[token]
            absorb_range(query[head, token], tail_keys, tail_values, first, last, scores, total, state)
            a, b = token * group, (token + 1) * group
            finish(total, state, outs[count + head, a:b], lses[count + head, a:b])
    for head in range(heads):
        _merge(outs, lses, slots[head], slots[head + 1], count + head, out[head].reshape(rows, dim))


@part
def _merge(outs: Any, lses: Any, first: int, last: int, other: int, out: Any) -> None:
    """The results first:last and `other` of one head, weighed by their log-sum-exps, into `out [R,D]`."""
    for r in range(len(out)):
        top = lses[other, r]
        for s in range(first, last):
            top = max(top, lses[s, r])
        total = exp(lses[other, r] - top)
        for d in range(out.shape[1]):
            out[r, d] = total * outs[other, r, d]
        for s in range(first, last):
            weight = exp(lses[s, r] - top)
            total += weight
            for d in range(out.shape[1]):
                out[r, d] += weight * outs[s, r, d]
        for d in range(out.shape[1]):
            out[r, d] /= total
