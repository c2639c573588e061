"""The tail: pairs of the question and of generated tokens, beside the archive that is never touched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.geometry import LayerShape

__all__ = ["Tail"]


class Tail:
    """Keys and values `[B, H, capacity, D]` of each layer, allocated once.

    `write` puts a layer's new pairs after the current length, `advance` makes them count, `reset` forgets all of them:
    the archive is as it was, and nothing is copied.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        batch: int = 1,
    ) -> None:
        """`capacity` in tokens."""
        self.capacity = capacity
        self.length = 0
        sizes = [(batch, shape.kv_heads, capacity, shape.head_dim) for shape in shapes]
        self._keys = [torch.empty(size, dtype=dtype, device=device) for size in sizes]
        self._values = [torch.empty(size, dtype=dtype, device=device) for size in sizes]

    @classmethod
    def over(cls, keys: list[Tensor], values: list[Tensor]) -> Tail:
        """An empty tail in the memory of `keys, values [B,H,capacity,D]` of each layer."""
        tail = cls.__new__(cls)
        tail.capacity, tail.length = keys[0].shape[2], 0
        tail._keys, tail._values = keys, values
        return tail

    @property
    def nbytes(self) -> int:
        """Bytes of the pairs held, at the current length."""
        held = (*self._keys, *self._values)
        return sum(t.shape[0] * t.shape[1] * self.length * t.shape[3] * t.element_size() for t in held)

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store `key, value [B,H,n,D]` after the current length; returns views of all pairs, `[B,H,length+n,D]`."""
        end = self.length + key.shape[2]
        if end > self.capacity:
            raise RuntimeError(f"tail of {self.capacity} tokens is full")
        keys, values = self._keys[layer], self._values[layer]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def copy_from(self, other: Tail) -> None:
        """Take over the pairs of another tail of the same shape that is not larger."""
        self.length = other.length
        for mine, theirs in zip((*self._keys, *self._values), (*other._keys, *other._values), strict=True):
            mine[:, :, : self.length] = theirs[:, :, : self.length]

    def advance(self, n: int) -> None:
        """Make the last `n` tokens written to every layer count."""
        self.length += n

    def truncate(self, length: int) -> None:
        """Forget all tokens after the first `length`."""
        self.length = min(self.length, length)

    def reset(self) -> None:
        """Forget all tokens."""
        self.length = 0
