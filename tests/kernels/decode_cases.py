"""Cases of attention over archive and tails, and their answers in float64, written without the code under test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from kvz.kernels.decode_plan import DecodePlan, Rows, TailPairs, plan_decode
from kvz.kernels.flat_pairs import FlatPairs, Grid

NAN = float("nan")
MARGIN = 4096  # numbers of a workspace behind what is used


@dataclass(frozen=True)
class Case:
    """`query [B,Hq,n,D]`, a plan over pairs whose numbers are `stored`, and a tail; around all lies `poison`."""

    query: Tensor
    plan: DecodePlan
    stored: tuple[Tensor, Tensor]
    tail: TailPairs | None

    @property
    def scale(self) -> float:
        return self.plan.pairs.dim**-0.5

    @property
    def terms(self) -> int:
        """How many products the longest row sums: a logit's, and the weighted values."""
        tail = 0 if self.tail is None else self.tail.keys.shape[2]
        return self.plan.pairs.dim + max(b - a for a, b in pairwise(self.plan.bounds)) + tail

    def expected(self) -> tuple[Tensor, Tensor]:
        """Output `[B,n,Hq,D]` and log-sum-exp `[B,n,Hq]`, row by row."""
        batch, query_heads, n, dim = self.query.shape
        out = torch.zeros(batch, n, query_heads, dim, dtype=torch.float64)
        lse = torch.full((batch, n, query_heads), float("-inf"), dtype=torch.float64)
        for head, (first, last) in enumerate(pairwise(self.plan.bounds)):
            for b in range(batch):
                for i in range(n):
                    keys, values = (t[first:last].double() for t in self.stored)
                    if self.tail is not None:
                        seen = int(self.tail.past[b]) + i + 1
                        keys = torch.cat([keys, self.tail.keys[b, head, :seen].double()])
                        values = torch.cat([values, self.tail.values[b, head, :seen].double()])
                    if not len(keys):
                        continue
                    group = slice(head * self.plan.rows.group, (head + 1) * self.plan.rows.group)
                    scores = self.query[b, group, i].double() @ keys.T * self.scale
                    out[b, i, group] = torch.softmax(scores, 1) @ values
                    lse[b, i, group] = torch.logsumexp(scores, 1)
        return out, lse


def make_case(
    lengths: list[int],
    rows: Rows,
    dim: int,
    past: list[int] | None,
    capacity: int = 64,
    dtype: torch.dtype = torch.float32,
    poison: float = NAN,
    bits: int = 16,
    group: int = 32,
    multiprocessors: int = 3,
) -> Case:
    """Random heads of `lengths` pairs, and tails of `past` tokens before the new ones; None for no tail."""
    made = torch.Generator().manual_seed(0)
    heads, bounds = len(lengths), [0, *accumulate(lengths)]
    query = torch.randn(rows.batch, rows.tokens, heads * rows.group, dim, generator=made).to(dtype).transpose(1, 2)
    numbers = [torch.randn(bounds[-1], dim, generator=made) for _ in range(2)]
    pairs, stored = _pairs(numbers, dtype, poison, bits, group)
    plan = plan_decode(pairs, bounds, rows, 0 if past is None else capacity, multiprocessors)
    plan = replace(plan, workspace=torch.full((plan.workspace_size + MARGIN,), NAN))
    if past is None:
        return Case(query, plan, stored, None)
    tails = []
    for _ in range(2):
        tail = torch.full((rows.batch + 1, heads, capacity, dim), poison, dtype=dtype)
        for b, length in enumerate(past):
            shape = heads, length + rows.tokens, dim
            tail[b, :, : shape[1]] = torch.randn(shape, generator=made).to(dtype)
        tails.append(tail[: rows.batch])
    return Case(query, plan, stored, TailPairs(tails[0], tails[1], torch.tensor(past, dtype=torch.int32)))


def _pairs(
    numbers: list[Tensor], dtype: torch.dtype, poison: float, bits: int, group: int
) -> tuple[FlatPairs, tuple[Tensor, Tensor]]:
    """Pairs, and the keys and values that they stand for."""
    if bits == 16:
        keys, values = (_surrounded(t.to(dtype), poison) for t in numbers)
        return FlatPairs(keys, values), (keys, values)
    codes, grids, meant = zip(*(_quantised(t, bits, group) for t in numbers), strict=True)
    pairs = FlatPairs(_surrounded(codes[0], 255), _surrounded(codes[1], 255), bits, group, grids[0], grids[1])
    return pairs, (meant[0], meant[1])


def _quantised(numbers: Tensor, bits: int, group: int) -> tuple[Tensor, Grid, Tensor]:
    """Codes between the smallest and the largest number of each row and group, a grid in float16, what both mean."""
    padded = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % group)).unflatten(1, (-1, group))
    low, most = padded.amin(2), (1 << bits) - 1
    step = (padded.amax(2) - low) / most
    codes = ((padded - low[..., None]) / step[..., None]).round().clamp(0, most).to(torch.uint8)
    meant = low.half().float()[..., None] + step.half().float()[..., None] * codes
    codes = codes.flatten(1)[:, : numbers.shape[1]]
    if bits == 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    grid = Grid(_surrounded(step.half(), NAN), _surrounded(low.half(), NAN))
    return codes, grid, meant.flatten(1)[:, : numbers.shape[1]]


def _surrounded(inner: Tensor, poison: float) -> Tensor:
    """A copy that lies, contiguous, between rows of poison."""
    outer = torch.full((len(inner) + 128, *inner.shape[1:]), poison, dtype=inner.dtype)
    outer[64:-64] = inner
    return outer[64:-64]
