"""Softmax attention of a few query rows that takes in its pairs block after block, as flash attention does."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvz.kernels.cpu.compile import part
from kvz.kernels.cpu.element import exp, widen

__all__ = ["BLOCK", "absorb", "absorb_range", "begin", "finish"]

BLOCK = 64
"""Pairs that are taken in at a time."""

_F = np.float32
_NOTHING = _F(-3e38)  # finite: fast arithmetic takes infinities for granted not to be there


@part
def begin(rows: int, dim: int) -> Any:
    """The state before any pair: weighted values `[R,D]`, and each row's largest score and sum of weights, `[R,2]`."""
    total = np.zeros((rows, dim), np.float32)
    state = np.empty((rows, 2), np.float32)
    state[:, 0] = _NOTHING
    state[:, 1] = 0
    return total, state


@part
def absorb(query: Any, keys: Any, values: Any, at: Any, count: int, scores: Any, total: Any, state: Any) -> None:
    """Take in rows at[:count] of flat `keys, values [N,D]`; `query [R,D]` is scaled, `scores [R,BLOCK]` room."""
    rows, dim = query.shape
    for j in range(count):
        row = at[j]
        for r in range(rows):
            score = _F(0)
            for d in range(dim):
                score += query[r, d] * widen(keys[row, d])
            scores[r, j] = score
    for r in range(rows):
        _weigh(scores[r], count, total[r], state[r])
    for j in range(count):
        row = at[j]
        for r in range(rows):
            weight = scores[r, j]
            for d in range(dim):
                total[r, d] += weight * widen(values[row, d])


@part
def absorb_range(
    query: Any, keys: Any, values: Any, first: int, last: int, scores: Any, total: Any, state: Any
) -> None:
    """Take in rows first:last."""
    at = np.empty(BLOCK, np.int64)
    for start in range(first, last, BLOCK):
        count = min(BLOCK, last - start)
        for j in range(count):
            at[j] = start + j
        absorb(query, keys, values, at, count, scores, total, state)


@part
def _weigh(scores: Any, count: int, total: Any, state: Any) -> None:
    """Turn a row's scores into weights under the largest score so far, and bring what it has to the same."""
    top = state[0]
    for j in range(count):
        top = max(top, scores[j])
    shrink = exp(state[0] - top)
    added = _F(0)
    for j in range(count):
        weight = exp(scores[j] - top)
        scores[j] = weight
        added += weight
    for d in range(total.shape[0]):
        total[d] *= shrink
    state[0] = top
    state[1] = state[1] * shrink + added


@part
def finish(total: Any, state: Any, out: Any, lse: Any) -> None:
    """Write the output `[R,D]` and the log-sum-exp `[R]`; without any pair they are zero and next to -inf."""
    for r in range(total.shape[0]):
        if state[r, 1] > 0:
            inverse = _F(1) / state[r, 1]
            lse[r] = state[r, 0] + np.log(state[r, 1])
            for d in range(total.shape[1]):
                out[r, d] = total[r, d] * inverse
        else:
            lse[r] = _NOTHING
            for d in range(total.shape[1]):
                out[r, d] = 0
