"""The plain form of attention over archive and tails, and what a plan holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvz.kernels.decode_plan import Rows, in_one_workspace, plan_decode
from kvz.kernels.flat_pairs import FlatPairs, Grid
from kvz.kernels.ragged_decode import plain_ragged_decode, ragged_decode
from tests.kernels.decode_cases import Case, make_case
from tests.near import assert_near

LARGE = 1e4  # what lies behind a tail's end must be finite for the plain form


def _check(case: Case, rounds: int = 1) -> tuple[Tensor, Tensor]:
    out, lse = ragged_decode(case.query, case.plan, case.scale, case.tail)
    expected, expected_lse = case.expected()
    assert_near(out, expected, case.terms, rounds=rounds)
    assert_near(lse, expected_lse, case.terms)
    return out, lse


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 7])
def test_tokens_of_several_questions(dim: int, group: int) -> None:
    _check(make_case([0, 1, 17, 1000], Rows(3, group, 1), dim, [0, 15, 40], poison=LARGE))


@pytest.mark.parametrize("past", [0, 1, 30])
def test_a_question_is_causal(past: int) -> None:
    _check(make_case([16, 0], Rows(1, 3, 9), 64, [past], poison=LARGE))


def test_several_questions_of_several_tokens() -> None:
    _check(make_case([16, 300], Rows(2, 4, 5), 64, [3, 20], poison=LARGE))


@pytest.mark.parametrize("bits", [8, 4])
def test_codes(bits: int) -> None:
    _check(make_case([16, 300], Rows(2, 4, 1), 80, [3, 20], poison=LARGE, bits=bits))


def test_half() -> None:
    out, lse = _check(make_case([16, 300], Rows(2, 4, 1), 64, [3, 20], poison=LARGE, dtype=torch.bfloat16), rounds=3)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


def test_a_row_that_sees_nothing_is_zero() -> None:
    out, lse = _check(make_case([0, 5], Rows(1, 2, 1), 64, None))
    assert (out[0, 0, :2] == 0).all()
    assert torch.isneginf(lse[0, 0, :2]).all()
    assert torch.isfinite(lse[0, 0, 2:]).all()


class _Asks(TorchDispatchMode):
    """Fails where a number is read from a tensor, or a shape depends on one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        assert not any(word in name for word in ("_local_scalar_dense", "nonzero", "masked_select", "unique")), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [Rows(2, 3, 1), Rows(1, 3, 4)])
def test_nothing_is_asked_of_the_device(rows: Rows) -> None:
    case = make_case([16, 300], rows, 64, [5] * rows.batch, poison=LARGE)
    with _Asks():
        plain_ragged_decode(case.query, case.plan, case.scale, case.tail)
        with pytest.raises(AssertionError, match="scalar"):
            case.query.sum().item()


def test_lengths_may_change_between_steps() -> None:
    case = make_case([16, 300], Rows(2, 3, 1), 64, [30, 40], poison=LARGE)
    assert case.tail is not None
    case.tail.past.copy_(torch.tensor([2, 39]))
    _check(case)


def test_one_workspace_serves_the_largest_layer() -> None:
    pairs = FlatPairs(torch.randn(5000, 64), torch.randn(5000, 64))
    plans = [plan_decode(pairs, bounds, Rows(2, 4, 1), 512, 8) for bounds in ([0, 10, 20], [0, 4000, 5000])]
    placed = in_one_workspace(plans)
    assert placed[0].workspace is placed[1].workspace
    assert placed[1].workspace.numel() == placed[1].workspace_size > placed[0].workspace_size
    for plan in placed:
        assert plan.outs.shape == (plan.slots, 8, 64)
        assert plan.lses.shape == (plan.slots, 8)
    ends = placed[1].outs.numel(), placed[1].lses.storage_offset()
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("capacity", "batch", "splits"), [(0, 1, 0), (1, 1, 1), (257, 1, 2), (100_000, 1, 16), (100_000, 64, 3)]
)
def test_a_tail_is_cut_into_as_many_parts_as_are_useful(capacity: int, batch: int, splits: int) -> None:
    pairs = FlatPairs(torch.randn(200, 64), torch.randn(200, 64))
    assert plan_decode(pairs, [0, 100, 200], Rows(batch, 4, 1), capacity, 132).splits == splits


def test_pairs_that_are_not_known_are_refused() -> None:
    codes = torch.zeros(3, 64, dtype=torch.uint8)
    grid = Grid(torch.ones(3, 2), torch.zeros(3, 2))
    assert FlatPairs(codes, codes, 8, 32, grid, grid).dim == 64
    assert FlatPairs(codes, codes, 4, 32, grid, grid).dim == 128
    for wrong in ({"bits": 2}, {"group": 16}, {"value_grid": None}):
        with pytest.raises(ValueError, match=r"known|grid"):
            replace(FlatPairs(codes, codes, 8, 32, grid, grid), **wrong)
