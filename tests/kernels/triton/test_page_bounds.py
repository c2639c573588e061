"""Bounds of pages by Triton are bit for bit those of torch."""

from __future__ import annotations

import pytest
import torch

from kvz.cache.pages import page_layer
from kvz.kernels.page_bounds import page_bounds
from kvz.kernels.triton.page_bounds import fill_page_bounds, launch_page_bounds
from tests.kernels.triton.ragged import random_layer

LENGTHS = (0, 1, 15, 16, 17, 1000)


@pytest.mark.parametrize(
    ("dim", "dtype", "size", "prefix"),
    [
        (64, torch.float32, 1, 0),
        (80, torch.bfloat16, 4, 3),
        (96, torch.float16, 5, 1),
        (128, torch.bfloat16, 16, 5),
        (256, torch.bfloat16, 3, 0),
    ],
)
def test_bounds_are_equal(dim: int, dtype: torch.dtype, size: int, prefix: int) -> None:
    torch.manual_seed(dim)
    layer = random_layer([prefix + n for n in LENGTHS], dim, dtype)
    wanted = page_layer(layer, prefix, size)
    made = launch_page_bounds(layer, prefix, size)
    assert made.bounds == wanted.bounds == page_bounds(layer, prefix, size).bounds
    assert made.size == size
    assert torch.equal(made.extremes, wanted.extremes)


def test_the_prefix_and_what_is_behind_the_last_page_are_left_alone() -> None:
    layer = random_layer([4, 12, 9], 64)
    for offset in layer.bounds[:-1]:
        layer.keys[offset : offset + 4] = float("nan")
    wanted = page_layer(layer, 4, 4)
    extremes = torch.full((128, 16), 77.0)
    fill_page_bounds(layer.keys, layer.offsets, 4, 4, wanted.bounds, extremes)
    count = wanted.bounds[-1]
    assert torch.equal(extremes[:, :count], wanted.extremes)
    assert extremes[:, count:].eq(77).all()
    assert not extremes.isnan().any()


def test_without_any_page_nothing_is_written() -> None:
    assert launch_page_bounds(random_layer([3, 3], 64), 3, 4).extremes.shape == (128, 0)
