"""The best units of each head in one launch, one program a head: see `kvz.kernels.select_top`.

The smallest score that is taken is found by halving the range of scores as ordered integers, which ends as soon as a
threshold leaves exactly as many as are wanted: some 16 looks at a head's scores, that lie in the first-level cache,
rather than the several launches of a sort. Indices are written in ascending order, so that what is then gathered is
read in the order of memory; of scores that equal the smallest one taken, the first come behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["Configuration", "configuration", "launch_select_top", "launches"]


@dataclass(frozen=True)
class Configuration:
    """Scores looked at together, warps and stages."""

    block: int
    warps: int
    stages: int


def configuration(units: int) -> Configuration:
    """For `units` scores of the longest head."""
    if units <= 2048:
        return Configuration(block=1024, warps=4, stages=1)
    return Configuration(block=8192, warps=16, stages=1)


@triton.jit
def _ordered(scores, first, count, units, BLOCK: tl.constexpr):
    """Scores from `first` on as integers in the same order; the smallest integer where there is none."""
    unit = first + tl.arange(0, BLOCK)
    value = tl.load(scores + unit, mask=unit < units, other=0.0)
    bits = value.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(unit < count, bits, -2147483648)


@triton.jit
def _select_top(scores, counts, takes, out, heads, units, K, BLOCK: tl.constexpr):
    head = tl.program_id(0)
    place = (tl.program_id(1) * heads + head).to(tl.int64)
    scores += place * units
    out += place * K
    count = tl.load(counts + head)
    take = tl.minimum(tl.minimum(tl.load(takes + head), K), count)

    # bounds as 64-bit numbers: `reached` are at least `low`, `above` (fewer than are wanted) at least `high`
    low = tl.full((), -2147483647, tl.int64)
    high = tl.full((), 2147483648, tl.int64)
    reached = count
    above = take * 0
    while (reached > take) & (high - low > 1):
        middle = (low + high) >> 1
        number = take * 0
        for first in range(0, count, BLOCK):
            bits = _ordered(scores, first, count, units, BLOCK)
            number += tl.sum((bits >= middle.to(tl.int32)).to(tl.int32), 0)
        enough = number >= take
        low = tl.where(enough, middle, low)
        reached = tl.where(enough, number, reached)
        high = tl.where(enough, high, middle)
        above = tl.where(enough, above, number)
    whole = reached <= take
    high = tl.where(whole, low, high)
    above = tl.where(whole, reached, above)

    better = take * 0
    equal = take * 0
    for first in range(0, count, BLOCK):
        bits = _ordered(scores, first, count, units, BLOCK).to(tl.int64)
        is_better = bits >= high
        is_equal = (bits >= low) & (bits < high)
        both = is_better.to(tl.int32) + (is_equal.to(tl.int32) << 16)
        until = tl.cumsum(both, 0)
        at = tl.where(is_better, better + (until & 0xFFFF) - 1, above + equal + (until >> 16) - 1)
        unit = first + tl.arange(0, BLOCK)
        tl.store(out + at, unit, mask=(is_better | is_equal) & (at < take) & (unit < count))
        in_block = tl.sum(both, 0)
        better += in_block & 0xFFFF
        equal += in_block >> 16
    for first in range(take, K, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + at, tl.full((BLOCK,), -1, tl.int32), mask=at < K)


def launch_select_top(scores: Tensor, counts: Tensor, takes: Tensor, out: Tensor) -> Tensor:
    """See `kvz.kernels.select_top.select_top`; NaN counts as the largest or the smallest number, by its sign."""
    batch, heads, units = scores.shape
    config = configuration(units)
    _select_top[(heads, batch)](
        scores,
        counts,
        takes,
        out,
        heads,
        units,
        out.shape[2],
        BLOCK=config.block,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out


def launches() -> Iterator[Launch]:
    """For few and for many units."""
    arguments = {
        "scores": pointer(torch.float32),
        **dict.fromkeys(("counts", "takes", "out"), pointer(torch.int32)),
        **dict.fromkeys(("heads", "units", "K"), "i32"),
    }
    aligned = frozenset({"scores", "counts", "takes", "out", "units"})
    for units in (2048, 30000):
        config = configuration(units)
        constants = {"BLOCK": config.block}
        yield Launch(
            f"select_top u{units}",
            _select_top,
            arguments,
            constants,
            config.warps,
            config.stages,
            aligned,
            products=False,
        )
