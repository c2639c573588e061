"""The full cache of a prefill: every pair of every head, preallocated once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts

__all__ = ["FullCache"]


class FullCache:
    """Keys and values `[H, capacity, D]` of each layer, filled chunk by chunk during a prefill.

    A forward pass over a chunk calls `attend` once a layer; `advance` then makes the chunk part of the past.
    `release` frees a layer once its survivors have been copied out.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, int]], capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shapes` is (KV heads, head dimension) of each layer, `capacity` in tokens."""
        self.length = 0
        self._keys: list[Tensor | None] = []
        self._values: list[Tensor | None] = []
        for heads, dim in shapes:
            self._keys.append(torch.empty(heads, capacity, dim, dtype=dtype, device=device))
            self._values.append(torch.empty(heads, capacity, dim, dtype=dtype, device=device))

    @property
    def layers(self) -> int:
        """Number of layers, released ones included."""
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Bytes of the pairs held, at the current length."""
        held = [t for t in (*self._keys, *self._values) if t is not None]
        return sum(t.shape[0] * self.length * t.shape[2] * t.element_size() for t in held)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Views of one layer's keys and values, `[H, length, D]`."""
        keys, values = self._keys[index], self._values[index]
        if keys is None or values is None:
            raise RuntimeError(f"layer {index} has been released")
        return keys[:, : self.length], values[:, : self.length]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store the chunk's pairs and attend causally over them and everything before.

        `query [1,Hq,n,D]`, `key, value [1,H,n,D]` -> `[1,n,Hq,D]`.
        """
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None
        assert values is not None
        keys[:, self.length : self.length + n] = key[0]
        values[:, self.length : self.length + n] = value[0]
        parts = [grouped_attention(grouped, key[0], value[0], scale, causal=True)]
        if self.length:
            parts.append(grouped_attention(grouped, keys[:, : self.length], values[:, : self.length], scale))
        out, _ = merge_parts(parts)
        return out.reshape(1, -1, n, dim).transpose(1, 2)

    def advance(self, n: int) -> None:
        """Make the last `n` tokens that went through `attend` part of the past."""
        self.length += n

    def release(self, layer: int) -> None:
        """Free one layer."""
        self._keys[layer] = self._values[layer] = None
