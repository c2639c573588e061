"""Attention over ragged heads: every KV head has its own number of pairs, stored flat, head after head.

How a layer's heads are cut into parts is planned once and used for every token: views of the stored pairs, and where
each part's result goes. A step then runs one dense kernel a part and one merge a layer, and copies no pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kvz.kernels.attention import attention
from kvz.kernels.merge import merge_stacked

__all__ = ["MOST_SPLIT_ROWS", "RaggedPlan", "plan_ragged", "ragged_attention", "ragged_attention_with_lse"]

MOST_SPLIT_ROWS = 32  # torch's CPU kernel spreads a head over threads by blocks of this many rows or more
_MIN_SPLIT = 256  # below this many pairs a second thread costs more than it saves


@dataclass(frozen=True)
class Segment:
    """Pairs of one head, cut into P equal parts: `keys, values [P,1,N,D]`, views of the stored ones."""

    head: int
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class RaggedPlan:
    """How one layer is attended. `order [H,P+1]` says which results belong to a head: its parts, then the tail's.

    Results are numbered part by part, segment by segment, then the tail of each head; the number after all of them is
    that of a part that does not exist.
    """

    segments: tuple[Segment, ...]
    order: Tensor


def plan_ragged(keys: Tensor, values: Tensor, bounds: Sequence[int], rows: int) -> RaggedPlan:
    """Plan attention of `rows` query rows a head over flat `keys, values [sum,D]`; head h owns bounds[h]:bounds[h+1].

    With few rows on a CPU a head's pairs are split over the threads, since there is nothing else to split.
    """
    wanted = torch.get_num_threads() if keys.device.type == "cpu" and rows <= MOST_SPLIT_ROWS else 1
    segments: list[Segment] = []
    numbers: list[list[int]] = []
    count = 0
    for head, (first, last) in enumerate(pairwise(bounds)):
        splits = wanted if last - first >= wanted * _MIN_SPLIT else 1
        own = _segments(head, keys, values, first, last, splits)
        parts = sum(segment.keys.shape[0] for segment in own)
        numbers.append(list(range(count, count + parts)))
        count += parts
        segments += own
    heads, most = len(numbers), max(map(len, numbers))
    nothing = count + heads
    order = [own + [nothing] * (most - len(own)) + [count + head] for head, own in enumerate(numbers)]
    return RaggedPlan(tuple(segments), torch.tensor(order, device=keys.device))


def ragged_attention(query: Tensor, plan: RaggedPlan, scale: float, tail: tuple[Tensor, Tensor]) -> Tensor:
    """Attention of `query [H,R,D]` over a planned layer and a tail, merged: `[H,R,D]` float32.

    `tail` is the attention over everything else: output `[H,R,D]` and log-sum-exp `[H,R]`.
    """
    return merge_stacked(*_parts(query, plan, scale, tail))


def ragged_attention_with_lse(
    query: Tensor, plan: RaggedPlan, scale: float, tail: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The same, and the log-sum-exp over all pairs, the tail's among them: `[H,R]` float32."""
    outs, lses = _parts(query, plan, scale, tail)
    return merge_stacked(outs, lses), torch.logsumexp(lses, 1)


def _parts(query: Tensor, plan: RaggedPlan, scale: float, tail: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Each head's parts, stacked: outputs `[H,P+1,R,D]` and log-sum-exps `[H,P+1,R]`."""
    heads, rows, dim = query.shape
    of_head = query.view(heads, 1, 1, rows, dim).unbind(0)
    outs, lses = [], []
    for segment in plan.segments:
        wide = of_head[segment.head].expand(segment.keys.shape[0], -1, -1, -1)
        out, lse = attention(wide, segment.keys, segment.values, scale)
        outs.append(out)
        lses.append(lse)
    outs += [tail[0].unsqueeze(1), query.new_zeros(1, 1, rows, dim)]
    lses += [tail[1].unsqueeze(1), tail[1].new_full((1, 1, rows), float("-inf"))]
    flat = plan.order.view(-1)
    shape = plan.order.shape
    all_outs = torch.cat(outs).index_select(0, flat).view(*shape, rows, dim)
    all_lses = torch.cat(lses).index_select(0, flat).view(*shape, rows)
    return all_outs, all_lses


def _segments(head: int, keys: Tensor, values: Tensor, first: int, last: int, splits: int) -> list[Segment]:
    """Equal parts of rows first:last, and what does not divide as a segment of its own."""
    share = (last - first) // splits
    middle = first + splits * share
    cuts = [(first, middle, splits), (middle, last, 1)]
    return [
        Segment(head, keys[a:b].view(parts, 1, -1, keys.shape[1]), values[a:b].view(parts, 1, -1, keys.shape[1]))
        for a, b, parts in cuts
        if b > a
    ]
