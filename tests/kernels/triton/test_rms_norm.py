"""RMS norms by Triton against float64, and against the norms of transformers' own models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvz.kernels.rms_norm import rms_norm
from kvz.kernels.triton.rms_norm import launch_rms_norm


def expected(rows: Tensor, weight: Tensor, eps: float, centred: bool) -> Tensor:
    rows, weight = rows.double(), weight.double()
    return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * (weight + centred)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("dim", "centred"), [(16, False), (64, True), (80, False), (128, True), (3584, False), (640, True)]
)
def test_rows_are_normed(dim: int, centred: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(dim)
    rows, weight = torch.randn(2, 3, dim).mul(7).to(dtype), torch.randn(dim).to(dtype)
    rows[1, 2] = 0
    got = launch_rms_norm(rows, weight, 1e-6, centred)
    assert (got.shape, got.dtype) == (rows.shape, dtype)
    wanted = expected(rows, weight, 1e-6, centred)
    error = (got.double() - wanted).abs()
    assert (error <= wanted.abs() * (1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps) + 1e-6).all()
    assert torch.equal(got[1, 2], torch.zeros(dim, dtype=dtype))


def test_what_lies_around_the_rows_is_left_alone() -> None:
    room = torch.full((5 * 96,), float("nan"))
    rows = room[96 : 4 * 96].view(3, 96)
    rows.copy_(torch.randn(3, 96))
    got = launch_rms_norm(rows, torch.ones(96), 1e-5, False)
    assert not got.isnan().any()
    torch.testing.assert_close(got, rms_norm(rows, torch.ones(96), 1e-5, False))


def test_no_row_is_no_work() -> None:
    assert launch_rms_norm(torch.empty(0, 64), torch.ones(64), 1e-5, False).shape == (0, 64)


def test_a_row_that_is_not_a_number_stays_so_and_spoils_no_other() -> None:
    rows = torch.randn(3, 64)
    rows[1, 5] = float("nan")
    got = launch_rms_norm(rows, torch.ones(64), 1e-5, False)
    assert got[1].isnan().all()
    assert not got[[0, 2]].isnan().any()
