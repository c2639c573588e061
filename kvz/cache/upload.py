"""Moving an archive's pairs to a GPU: read in order into pinned memory, copied while the next part is read."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache, RaggedLayer

__all__ = ["Uploader", "upload"]

_STAGE_BYTES = 32 << 20


def upload(cache: RaggedCache, device: torch.device) -> RaggedCache:
    """The same cache on `device`, layer by layer; where that is no GPU, or the pairs are on one, as torch does it."""
    if device.type != "cuda" or cache.layers[0].keys.is_cuda:
        return cache.to(device)
    with torch.cuda.device(device):
        uploader = Uploader(device)
        layers = tuple(uploader.copy_layer(layer) for layer in cache.layers)
        uploader.wait()
    return RaggedCache(layers, cache.logical_length)


class Uploader:
    """Two pinned stages: one is filled from the file's pages while the other is copied to the device."""

    def __init__(self, device: torch.device, stage_bytes: int = _STAGE_BYTES) -> None:
        self._device = device
        self._stages = [self._stage(stage_bytes) for _ in range(2)]
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """The same numbers on the device; complete after `wait`, or for what is queued there afterwards."""
        target = torch.empty_like(tensor, device=self._device, memory_format=torch.contiguous_format)
        if not tensor.numel():
            return target
        source, into = _bytes_of(tensor), _bytes_of(target)
        size = len(self._stages[0])
        for start in range(0, len(source), size):
            part = source[start : start + size]
            stage = self._next()[: len(part)]
            stage.copy_(part)
            into[start : start + len(part)].copy_(stage, non_blocking=True)
            self._mark()
        return target

    def copy_layer(self, layer: RaggedLayer) -> RaggedLayer:
        """The same layer, its pairs and indexes on the device."""
        return RaggedLayer(
            self.copy(layer.keys),
            self.copy(layer.values),
            self.copy(layer.offsets),
            self.copy(layer.positions),
            layer.window,
            self._copy_index(layer.planes),
            self._copy_index(layer.pages),
        )

    def _copy_index(self, index: Any) -> Any:
        """An index with all its tensors on the device."""
        if index is None:
            return None
        held = {field.name: getattr(index, field.name) for field in fields(index)}
        return replace(index, **{name: self.copy(t) for name, t in held.items() if isinstance(t, Tensor)})

    def wait(self) -> None:
        """Until everything is there."""
        for event in self._copied:
            if event is not None:
                event.synchronize()

    def _next(self) -> Tensor:
        """The stage that was copied longer ago, free to be filled."""
        self._turn = 1 - self._turn
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()
        return self._stages[self._turn]

    def _mark(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._copied[self._turn] = event

    def _stage(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
