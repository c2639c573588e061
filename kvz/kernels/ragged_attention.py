"""Attention over ragged heads: every KV head has its own number of pairs, stored flat, head after head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.kernels.attention import attention

__all__ = ["parts_needed", "ragged_attention"]

_ROWS_PER_BLOCK = 32  # torch's CPU kernel spreads a head over threads by blocks of this many rows or more
_MIN_SPLIT = 256  # below this many pairs a second thread costs more than it saves


def parts_needed(device: torch.device, rows: int) -> int:
    """How many parts `ragged_attention` may write for `rows` query rows a head: splits plus one remainder."""
    return _splits(device, rows) + 1


def ragged_attention(
    query: Tensor, keys: Tensor, values: Tensor, bounds: Sequence[int], scale: float, outs: Tensor, lses: Tensor
) -> None:
    """Attention of `query [H,R,D]` over flat `keys, values [sum,D]`, head h owning rows bounds[h]:bounds[h+1].

    Writes into `outs [H,P,R,D]` and `lses [H,P,R]` (float32, zeroed and -inf where nothing is written), P at least
    `parts_needed`. With few rows and a CPU, a head's pairs are split over the threads, since there is nothing else to
    split; nothing is copied, and no head waits for a longer one's padding.
    """
    heads, rows, dim = query.shape
    wanted = _splits(query.device, rows)
    for head in range(heads):
        first, last = bounds[head], bounds[head + 1]
        count = last - first
        splits = wanted if count >= wanted * _MIN_SPLIT else 1
        share = count // splits
        main = first + splits * share
        if share:
            out, lse = attention(
                query[head].expand(splits, 1, rows, dim),
                keys[first:main].view(splits, 1, share, dim),
                values[first:main].view(splits, 1, share, dim),
                scale,
            )
            outs[head, :splits] = out[:, 0]
            lses[head, :splits] = lse[:, 0]
        if main < last:
            out, lse = attention(
                query[head].view(1, 1, rows, dim),
                keys[main:last].view(1, 1, last - main, dim),
                values[main:last].view(1, 1, last - main, dim),
                scale,
            )
            outs[head, splits] = out[0, 0]
            lses[head, splits] = lse[0, 0]


def _splits(device: torch.device, rows: int) -> int:
    return torch.get_num_threads() if device.type == "cpu" and rows <= _ROWS_PER_BLOCK else 1
