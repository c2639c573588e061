"""Merging parts by log-sum-exp, against float64."""

from __future__ import annotations

import pytest
import torch

from kvz.kernels.triton.merge_splits import launch_merge_splits
from tests.near import assert_near


@pytest.mark.parametrize(
    ("splits", "group", "dim", "dtype"),
    [(1, 1, 64, torch.float32), (16, 3, 80, torch.bfloat16), (17, 4, 96, torch.float16), (40, 8, 256, torch.float32)],
)
def test_parts_are_weighed_by_their_sums(splits: int, group: int, dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(splits)
    outs = torch.randn(2, 2, splits, group, dim)
    lses = 20 * torch.randn(2, 2, splits, group)
    empty = torch.rand(lses.shape) < 0.3
    empty[0, 0, :, 0] = True
    weights = lses.double().masked_fill(empty, float("-inf")).softmax(2).nan_to_num(0)
    wanted = (weights.unsqueeze(-1) * outs.double()).sum(2).view(2, 1, 2 * group, dim)
    lses[empty], outs[empty] = float("-inf"), float("nan")
    out = torch.full((2, 1, 2 * group, dim), float("nan"), dtype=dtype)
    launch_merge_splits(outs, lses, out)
    assert_near(out, wanted, splits)
