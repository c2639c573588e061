"""Pairs come through the stages as they were, whatever their size."""

from __future__ import annotations

import pytest
import torch

from kvz.cache.bit_planes import plane_layer
from kvz.cache.pages import page_layer
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.cache.upload import Uploader, upload

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(0, 4), (1,), (7, 3), (40, 5)])
def test_tensors_of_any_size_through_small_stages(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    uploader = Uploader(CPU, stage_bytes=7)
    tensors = [torch.randint(0, 2, shape).to(dtype) * n for n in (1, 3)]
    moved = [uploader.copy(t) for t in tensors]
    uploader.wait()
    for before, after in zip(tensors, moved, strict=True):
        assert torch.equal(before, after)
        assert after.is_contiguous()
        assert after.numel() == 0 or after.data_ptr() != before.data_ptr()


def test_a_layer_with_its_indexes() -> None:
    keys, values = torch.randn(50, 8), torch.randn(50, 8)
    layer = RaggedLayer(keys, values, torch.tensor([0, 20, 50]), torch.arange(50, dtype=torch.int32))
    layer = RaggedLayer(
        keys, values, layer.offsets, layer.positions, None, plane_layer(layer, 2), page_layer(layer, 2, 4)
    )
    moved = Uploader(CPU, stage_bytes=64).copy_layer(layer)
    assert layer.planes is not None
    assert moved.planes is not None
    assert layer.pages is not None
    assert moved.pages is not None
    assert torch.equal(moved.keys, keys)
    assert torch.equal(moved.positions, layer.positions)
    assert torch.equal(moved.planes.planes, layer.planes.planes)
    assert moved.planes.bounds == layer.planes.bounds
    assert torch.equal(moved.pages.extremes, layer.pages.extremes)
    assert moved.pages.grid is None
    assert moved.bounds == (0, 20, 50)


def test_without_a_gpu_nothing_is_copied() -> None:
    layer = RaggedLayer(torch.zeros(3, 4), torch.zeros(3, 4), torch.tensor([0, 3]), torch.zeros(3, dtype=torch.int32))
    assert upload(RaggedCache((layer,), 3), CPU).layers[0].keys.data_ptr() == layer.keys.data_ptr()
