"""The full cache of a prefill: every pair of every head, preallocated once; of sliding layers, their last window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.cache.sliding import SlidingLayer
from kvz.geometry import LayerShape
from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts

__all__ = ["FullCache"]


class FullCache:
    """Keys and values of each layer, filled chunk by chunk during a prefill: `[H, capacity, D]` of a full layer.

    A forward pass over a chunk calls `attend` once a layer; `advance` then makes the chunk part of the past.
    `release` frees a layer once its survivors have been copied out. With `offload` the pairs of full layers lie in
    pinned main memory, and one layer at a time is brought to the device.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        offload: bool = False,
        slack: int = 0,
    ) -> None:
        """`capacity` in tokens; sliding layers keep `slack` tokens beyond their window (see `SlidingLayer`)."""
        self.length = 0
        self.device = device
        home = torch.device("cpu") if offload else device
        pinned = offload and device.type == "cuda"
        self._full: dict[int, _FullLayer] = {}
        self._sliding: dict[int, SlidingLayer] = {}
        for index, shape in enumerate(shapes):
            if shape.window is None:
                size = (shape.kv_heads, capacity, shape.head_dim)
                keys, values = (torch.empty(size, dtype=dtype, device=home, pin_memory=pinned) for _ in range(2))
                self._full[index] = _FullLayer(keys, values, device)
            else:
                none = torch.empty(shape.kv_heads, 0, shape.head_dim, dtype=dtype, device=device)
                self._sliding[index] = SlidingLayer(none, none, shape.window, slack)
        self.layers = len(shapes)

    @property
    def nbytes(self) -> int:
        """Bytes of the pairs held, at the current length."""
        full = [t[:, : self.length] for layer in self._full.values() for t in (layer.keys, layer.values)]
        sliding = [t for layer in self._sliding.values() for t in (layer.keys, layer.values)]
        return sum(t.numel() * t.element_size() for t in (*full, *sliding))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """A full layer's keys and values on the device, `[H, length, D]`: views, or copies of an offloaded layer."""
        return self._layer(index).on_device(self.length)

    def stored(self, index: int) -> tuple[Tensor, Tensor]:
        """Views of a full layer's keys and values `[H, length, D]`, where they lie."""
        layer = self._layer(index)
        return layer.keys[:, : self.length], layer.values[:, : self.length]

    def sliding(self, index: int) -> SlidingLayer | None:
        """A sliding layer's last window, None for a full layer."""
        return self._sliding.get(index)

    def sliding_before(self, last: int) -> dict[int, SlidingLayer]:
        """The sliding layers as they were before the last `last` tokens, which the slack must cover."""
        return {index: layer.before(last) for index, layer in self._sliding.items()}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store the chunk's pairs and attend causally over them and everything before that the layer sees.

        `query [1,Hq,n,D]`, `key, value [1,H,n,D]` -> `[1,n,Hq,D]`.
        """
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        sliding = self._sliding.get(layer)
        if sliding is not None:
            out = sliding.attend(grouped, key[0], value[0], scale)
            sliding.append(key[0], value[0])
        else:
            out = self._layer(layer).attend(grouped, key[0], value[0], scale, self.length)
        return out.reshape(1, -1, n, dim).transpose(1, 2)

    def advance(self, n: int) -> None:
        """Make the last `n` tokens that went through `attend` part of the past."""
        self.length += n

    def release(self, layer: int) -> None:
        """Free one layer."""
        self._full.pop(layer, None)
        self._sliding.pop(layer, None)

    def _layer(self, index: int) -> _FullLayer:
        if index not in self._full:
            raise RuntimeError(f"layer {index} has been released, or is no full layer")
        return self._full[index]


class _FullLayer:
    """Keys and values `[H, capacity, D]`, and the device that attends them."""

    def __init__(self, keys: Tensor, values: Tensor, device: torch.device) -> None:
        self.keys = keys
        self.values = values
        self._device = device

    def on_device(self, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` pairs, copied only if they lie elsewhere."""
        keys, values = self.keys[:, :length], self.values[:, :length]
        return keys.to(self._device, non_blocking=True), values.to(self._device, non_blocking=True)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, length: int) -> Tensor:
        """Store n pairs after the first `length`, and attend them and those: `query [H,G,n,D]` -> `[H,G*n,D]`."""
        n = key.shape[1]
        self.keys[:, length : length + n] = key
        self.values[:, length : length + n] = value
        parts = [grouped_attention(query, key, value, scale, causal=True)]
        if length:
            parts.append(grouped_attention(query, *self.on_device(length), scale))
        return merge_parts(parts)[0]
