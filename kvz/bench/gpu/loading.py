"""Loading: seconds to bring an archive's pairs from a file in memory-mapped pages to the GPU."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from kvz.bench.gpu.models import ModelGeometry, random_lengths
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.cache.upload import upload

__all__ = ["loading_rows"]

_LAYERS = 8  # enough to see the speed: a whole archive of 96K tokens takes long to write


def loading_rows(
    geometry: ModelGeometry, tokens: int, dtype: torch.dtype, device: torch.device
) -> Iterator[dict[str, Any]]:
    """A row for each way: through pinned stages, and as `Tensor.to` does it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.safetensors"
        bounds = _write(geometry, tokens, dtype, path)
        for way, move in (("pinned stages", upload), ("Tensor.to", lambda cache, where: cache.to(where))):
            cache = _read(path, bounds)
            began = time.perf_counter()
            moved = move(cache, device)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - began
            yield {"way": way, "seconds": seconds, "bytes_a_second": moved.nbytes / seconds}


def _write(geometry: ModelGeometry, tokens: int, dtype: torch.dtype, path: Path) -> list[list[int]]:
    tensors, bounds = {}, []
    for layer in range(min(_LAYERS, geometry.layers)):
        lengths = random_lengths(geometry.kv_heads, tokens, 0.3, layer)
        bounds.append([0, *torch.tensor(lengths).cumsum(0).tolist()])
        for name in ("keys", "values"):
            tensors[f"{layer}.{name}"] = torch.zeros(bounds[-1][-1], geometry.head_dim, dtype=dtype)
    save_file(tensors, path)
    return bounds


def _read(path: Path, bounds: list[list[int]]) -> RaggedCache:
    tensors = load_file(path)
    layers = []
    for number, own in enumerate(bounds):
        positions = torch.zeros(own[-1], dtype=torch.int32)
        offsets = torch.tensor(own)
        layers.append(RaggedLayer(tensors[f"{number}.keys"], tensors[f"{number}.values"], offsets, positions))
    return RaggedCache(tuple(layers), 0)
