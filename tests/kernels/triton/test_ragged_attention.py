"""The kernel against float64, with NaN or infinity in all memory around what counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvz.kernels.decode_plan import Rows, TailPairs
from kvz.kernels.triton.ragged_attention import triton_ragged_decode
from tests.kernels.decode_cases import NAN, Case, make_case
from tests.near import assert_near

INF = float("inf")


@pytest.fixture(autouse=True)
def _new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # new tensors are filled with NaN
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def _check(case: Case, size: float = 1.0) -> tuple[Tensor, Tensor]:
    out, lse = triton_ragged_decode(case.query, case.plan, case.scale, case.tail)
    assert case.plan.workspace[case.plan.workspace_size :].isnan().all()
    expected, expected_lse = case.expected()
    assert_near(out, expected, case.terms, size=size)
    assert_near(lse, expected_lse, case.terms, size=size)
    return out, lse


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_every_head_dimension(dim: int) -> None:
    _check(make_case([0, 1, 70], Rows(1, 2, 1), dim, [17], poison=INF))


@pytest.mark.parametrize("group", [1, 3, 4, 6, 7, 8])
def test_every_group(group: int) -> None:
    _check(make_case([33, 16], Rows(2, group, 1), 64, [15, 63]))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 63, 64, 65, 1000])
def test_every_length_of_a_head(length: int) -> None:
    _check(make_case([5, length, 0], Rows(1, 3, 1), 64, [3], poison=INF))


@pytest.mark.parametrize("past", [0, 1, 14, 15, 16, 62, 63, 64, 126])
def test_every_length_of_a_tail_of_two_parts(past: int) -> None:
    case = make_case([20], Rows(1, 3, 1), 64, [past], capacity=512)
    assert case.plan.splits == 2
    _check(case)


@pytest.mark.parametrize(("past", "tokens"), [(0, 2), (5, 11), (60, 7), (0, 65)])
def test_a_question_is_causal(past: int, tokens: int) -> None:
    _check(make_case([70], Rows(1, 2, tokens), 64, [past], capacity=512, poison=INF))


def test_several_questions_of_several_tokens() -> None:
    _check(make_case([16, 100], Rows(2, 3, 9), 64, [3, 20]))


def test_rows_of_several_questions_share_the_archive_in_blocks() -> None:
    case = make_case([90], Rows(33, 4, 1), 64, [i % 5 for i in range(33)], capacity=8)
    assert case.plan.schedule.row_blocks == 2  # 132 rows in blocks of 128
    _check(case)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("dim", "group"), [(64, 32), (64, 64), (80, 32), (80, 64), (128, 32)])
def test_codes(bits: int, dim: int, group: int) -> None:
    _check(make_case([0, 17, 70], Rows(1, 3, 1), dim, [4], bits=bits, group=group))


@pytest.mark.parametrize("rows", [Rows(1, 7, 1), Rows(1, 3, 5)])
def test_half(rows: Rows) -> None:
    out, lse = _check(make_case([17, 100], rows, 80, [9], dtype=torch.float16))
    assert (out.dtype, lse.dtype) == (torch.float16, torch.float32)


def test_without_a_tail() -> None:
    out, lse = _check(make_case([0, 100], Rows(1, 2, 3), 64, None))
    assert (out[:, :, :2] == 0).all()
    assert torch.isneginf(lse[:, :, :2]).all()


def test_without_any_pair() -> None:
    out, lse = _check(make_case([0, 0], Rows(2, 2, 1), 64, None))
    assert (out == 0).all()
    assert torch.isneginf(lse).all()


def test_an_empty_archive_with_a_tail() -> None:
    _check(make_case([0, 0], Rows(2, 2, 1), 64, [0, 9]))


def test_scores_far_from_zero_do_not_overflow() -> None:
    case = make_case([30, 90], Rows(1, 2, 1), 64, [9])
    _check(replace(case, query=case.query * 300), size=300)


def test_lengths_are_read_when_the_kernel_runs() -> None:
    case = make_case([30], Rows(2, 2, 1), 64, [20, 30])
    assert case.tail is not None
    _check(case)
    case.tail.past.copy_(torch.tensor([3, 0]))
    case.plan.workspace.fill_(NAN)
    _check(case)


def test_the_tail_of_a_few_rows_of_a_larger_store() -> None:
    case = make_case([30], Rows(2, 2, 1), 64, [20, 30])
    assert case.tail is not None
    keys, values = (torch.full((5, 1, 200, 64), NAN) for _ in range(2))
    keys[:2, :, :64], values[:2, :, :64] = case.tail.keys, case.tail.values
    _check(replace(case, tail=TailPairs(keys[:2], values[:2], case.tail.past)))


def test_what_was_not_planned_is_refused() -> None:
    case = make_case([30], Rows(2, 2, 1), 64, [20, 30])
    tail = case.tail
    assert tail is not None
    wrong: list[tuple[Tensor, TailPairs | None]] = [
        (case.query[:1], tail),
        (case.query.transpose(0, 3).contiguous().transpose(0, 3), tail),
        (case.query, None),
        (case.query, replace(tail, past=tail.past.long())),
        (case.query, replace(tail, keys=tail.keys.transpose(2, 3).contiguous().transpose(2, 3))),
        (case.query, replace(tail, keys=tail.keys[:1], values=tail.values[:1])),
        (case.query, replace(tail, keys=tail.keys.half(), values=tail.values.half())),
    ]
    for query, other in wrong:
        with pytest.raises(ValueError, match=r"planned|laid out|must be"):
            triton_ragged_decode(query, case.plan, case.scale, other)
