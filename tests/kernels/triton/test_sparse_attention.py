"""Attention of prefix, chosen pairs and tail by Triton, against float64 and against torch's parts merged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvz.kernels.sparse_attention import ChoosableLayer, SparseSpace, plain_sparse_attention
from kvz.kernels.triton.sparse_attention import launch_sparse_attention
from tests.kernels.triton.ragged import random_layer
from tests.near import assert_near

SCALE = 0.2
CAPACITY = 70


class Case:
    """A layer of ragged heads, units chosen at random, and tails of `past` pairs; what is not to be read is NaN."""

    def __init__(
        self,
        dim: int,
        group: int,
        dtype: torch.dtype,
        size: int,
        prefix: int,
        lengths: tuple[int, ...],
        takes: tuple[int, ...],
        past: tuple[int, ...],
    ) -> None:
        torch.manual_seed(dim + group)
        self.prefix, self.size, self.lengths, self.takes = prefix, size, lengths, takes
        layer = random_layer([prefix + n for n in lengths], dim, dtype)
        self.bounds = layer.bounds
        self.query = torch.randn(len(past), len(lengths), group, dim).to(dtype)
        self.past = torch.tensor(past, dtype=torch.int32)
        self.tail = tuple(torch.randn(len(past), len(lengths), CAPACITY, dim).to(dtype) for _ in range(2))
        for question, held in enumerate(past):
            for part in self.tail:
                part[question, :, held:] = float("nan")
        self.layer = ChoosableLayer.of(layer, prefix, size, takes)
        self.units = self.layer.units(len(past)).fill_(1 << 24)  # behind what a head takes, no unit that exists
        for question in range(len(past)):
            for head, (length, take) in enumerate(zip(lengths, takes, strict=True)):
                units = torch.randperm(-(-length // size))[:take].int()
                units[3:4] = -1  # a place without a unit
                self.units[question, head, : len(units)] = units
                self.units[question, head, len(units) : take] = -1
        self._poison(layer.keys, layer.values)

    def rows(self, question: int, head: int) -> list[int]:
        """Rows of the layer that one question attends."""
        begin = self.bounds[head] + self.prefix
        units = [unit for unit in self.units[question, head, : self.takes[head]].tolist() if unit >= 0]
        tokens = [t for unit in units for t in range(unit * self.size, (unit + 1) * self.size)]
        return [*range(self.bounds[head], begin), *(begin + t for t in tokens if t < self.lengths[head])]

    def wanted(self) -> Tensor:
        """Float64, row by row: `[B,1,H*G,D]`."""
        out = torch.zeros(self.query.shape, dtype=torch.float64)
        for question, held in enumerate(self.past.tolist()):
            for head in range(len(self.lengths)):
                rows = self.rows(question, head)
                keys, values = (
                    torch.cat([own[rows], tail[question, head, :held]]).double()
                    for own, tail in zip((self.layer.keys, self.layer.values), self.tail, strict=True)
                )
                if len(keys):
                    scores = self.query[question, head].double() @ keys.T * SCALE
                    out[question, head] = scores.softmax(-1) @ values
        return out.flatten(1, 2).unsqueeze(1)

    def run(self, splits: int | None, plain: bool = False) -> Tensor:
        batch, heads, group, dim = self.query.shape
        space = SparseSpace.of(self.layer, batch, group, CAPACITY)
        if splits is not None:
            space = SparseSpace(torch.zeros(batch, heads, splits, group, dim), torch.zeros(batch, heads, splits, group))
        space.outs.fill_(float("nan"))
        space.lses.fill_(float("nan"))
        out = torch.full((batch, 1, heads * group, dim), float("nan"), dtype=self.query.dtype)
        run = plain_sparse_attention if plain else launch_sparse_attention
        return run(self.query, self.layer, self.units, self.tail, self.past, SCALE, space, out)

    def _poison(self, keys: Tensor, values: Tensor) -> None:
        questions, heads = range(len(self.past)), range(len(self.lengths))
        read = {row for question in questions for head in heads for row in self.rows(question, head)}
        rest = [row for row in range(len(keys)) if row not in read]
        keys[rest], values[rest] = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("dim", "group", "dtype", "size", "prefix"),
    [
        (64, 1, torch.float32, 1, 0),
        (80, 3, torch.float32, 4, 5),
        (96, 4, torch.float16, 3, 33),
        (128, 6, torch.bfloat16, 16, 4),
        (128, 7, torch.float32, 2, 1),
        (256, 8, torch.bfloat16, 1, 7),
    ],
)
def test_output_is_that_of_float64(dim: int, group: int, dtype: torch.dtype, size: int, prefix: int) -> None:
    case = Case(dim, group, dtype, size, prefix, (16, 0, 1, 15, 17, 300), (2, 0, 1, 5, 17, 18), (0, 65))
    out = case.run(None)
    assert_near(out, case.wanted(), dim + prefix + 300 + CAPACITY)


@pytest.mark.parametrize("splits", [1, 3, 20])
def test_output_does_not_depend_on_the_number_of_programs(splits: int) -> None:
    case = Case(64, 4, torch.float32, 4, 3, (500, 31), (60, 7), (70, 16))
    assert_near(case.run(splits), case.wanted(), 64 + 60 * 4 + CAPACITY)


def test_plain_form_is_equal() -> None:
    case = Case(64, 4, torch.float32, 4, 3, (31, 0), (7, 0), (0, 16))
    # torch's kernel multiplies what is masked: the plain form is given pairs that are numbers
    case.layer = replace(case.layer, keys=case.layer.keys.nan_to_num(0), values=case.layer.values.nan_to_num(0, 0, 0))
    assert_near(case.run(None, plain=True), case.wanted(), 64 + 7 * 4 + CAPACITY)


def test_what_sees_nothing_is_zero() -> None:
    case = Case(64, 3, torch.float32, 4, 0, (9, 0), (2, 0), (0,))
    case.units.fill_(-1)
    assert torch.equal(case.run(None), torch.zeros(1, 1, 6, 64))
    assert torch.equal(case.run(None, plain=True), torch.zeros(1, 1, 6, 64))
