"""How attention over one layer's ragged heads is shared out among the programs of a GPU, so that none works longer.

The pairs of all heads, laid end to end, are cut into equal shares of consecutive pairs, one a program. A share that
crosses from one head into the next is several segments: each gives a result of its own, and a head's results are merged
by log-sum-exp. Cuts fall between any two pairs: a pair's key is 128 bytes or more, so that every pair is an aligned
start.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["LEAST_SHARE", "Schedule", "block_rows", "plan_schedule", "programs_at_once"]

LEAST_SHARE = 64
"""Pairs a program has at least: with fewer, starting and merging it costs more than it saves."""

_MOST_BLOCK = 128


@dataclass(frozen=True, eq=False)
class Schedule:
    """Shares of one layer, int32 on its device; each is worked through once for each of `row_blocks` blocks of rows.

    `segments [S,4]`: head, first pair, pair after the last (rows of the flat keys), and the slot its result goes to.
    Program p owns segments programs[p]:programs[p+1] of `programs [P+1]`. The results of head h are in slots
    heads[h]:heads[h+1] of `heads [H+1]`; `most_slots` is the largest number of them a head has.
    """

    segments: Tensor
    programs: Tensor
    heads: Tensor
    row_blocks: int
    most_slots: int

    @property
    def program_count(self) -> int:
        """Programs that share the pairs."""
        return len(self.programs) - 1

    @property
    def slots(self) -> int:
        """Results of all heads."""
        return len(self.segments)

    def balance(self, multiprocessors: int) -> float:
        """Pairs of the busiest multiprocessor over the mean of all; 1 is best. For a look at it: asks the device.

        Programs start in order, each where there is least to do, as a GPU has them start.
        """
        owned = [last - first for _, first, last, _ in self.segments.tolist()]
        shares = [sum(owned[first:last]) for first, last in pairwise(self.programs.tolist())]
        work = [0] * multiprocessors
        for share in shares:
            for _ in range(self.row_blocks):
                heapq.heapreplace(work, work[0] + share)
        return max(work) * multiprocessors / sum(work) if shares else 1.0


def block_rows(rows: int, dim: int, bits: int = 16) -> int:
    """Query rows that one program takes at a time, of `rows` in all: 16, 32, 64 or 128.

    At most 128; half of it if D is over 128, and half of it where pairs are codes: what does not fit into registers is
    slow.
    """
    most = _MOST_BLOCK >> int(dim > 128) + int(bits < 16)
    return min(most, max(16, 1 << (rows - 1).bit_length()))


def programs_at_once(block: int, dim: int, bits: int = 16) -> int:
    """Programs of `block` rows that a multiprocessor runs at once: two of 4 warps, or one of 8 where registers are few.

    With many rows a second one is worth little, and its results are as large as its share of pairs.
    """
    return 1 if block > 64 or (block > 32 and bits < 16) or (block > 16 and dim > 128) else 2


def plan_schedule(
    bounds: Sequence[int],
    multiprocessors: int,
    programs_each: int = 2,
    row_blocks: int = 1,
    device: torch.device | str = "cpu",
) -> Schedule:
    """The schedule of a layer whose head h owns pairs bounds[h]:bounds[h+1]; heads may be empty.

    `programs_each` is how many programs a multiprocessor runs at once. Raises ValueError for bounds that fall.
    """
    if any(last < first for first, last in pairwise(bounds)):
        raise ValueError("bounds of heads must not fall")
    count = _program_count(bounds[-1] - bounds[0], multiprocessors, programs_each, row_blocks)
    segments: list[tuple[int, int, int, int]] = []
    programs = [0]
    for first, last in pairwise(_cuts(bounds[0], bounds[-1], count)):
        for head, (begin, end) in enumerate(pairwise(bounds)):
            low, high = max(first, begin), min(last, end)
            if low < high:
                segments.append((head, low, high, len(segments)))
        programs.append(len(segments))
    slots = [0] * len(bounds)
    for head, *_ in segments:
        slots[head + 1] += 1
    most = max(slots)
    for head in range(1, len(slots)):
        slots[head] += slots[head - 1]
    table = torch.tensor(segments, dtype=torch.int32).view(-1, 4)
    starts, ends = (torch.tensor(t, dtype=torch.int32) for t in (programs, slots))
    return Schedule(table.to(device), starts.to(device), ends.to(device), row_blocks, most)


def _program_count(pairs: int, multiprocessors: int, each: int, row_blocks: int) -> int:
    """Programs to share `pairs`: as many as are useful, and then so that all multiprocessors end together."""
    most = pairs // LEAST_SHARE
    places = multiprocessors * min(each, max(1, most * row_blocks // multiprocessors))
    wanted = -(-places // row_blocks)
    if wanted >= most:
        return min(pairs, max(1, most))
    counts = range(wanted, min(most, 2 * wanted) + 1)
    return min(counts, key=lambda count: (_idle(count * row_blocks, multiprocessors), count))


def _idle(units: int, places: int) -> float:
    """Time that is waited over time that is worked, when `units` of equal work are done in `places`."""
    return -(-units // places) * places / units - 1


def _cuts(first: int, last: int, count: int) -> list[int]:
    """`count` + 1 cuts of first:last into shares that differ by one pair at most."""
    if not count:
        return [first]
    return [first + (last - first) * i // count for i in range(count + 1)]
