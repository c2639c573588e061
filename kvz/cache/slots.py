"""Tails of several questions side by side, each of its own length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.cache.tail import Tail
from kvz.geometry import LayerShape

__all__ = ["TailSlots"]


class TailSlots:
    """Keys and values `[size, H, capacity, D]` of each layer; the first `len(lengths)` rows are in use.

    `open` gives the next row as a tail to read a question into; from then on `write` and `advance` add a token to every
    row. `close` frees a row: the last one in use takes its place.
    """

    def __init__(
        self, shapes: Sequence[LayerShape], size: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shapes = shapes
        self._dtype, self._device = dtype, device
        self._size = size
        self._rows: list[Tail] = []
        self._known: tuple[list[int], Tensor] = [], torch.empty(0)
        self._allocate(capacity)

    @property
    def lengths(self) -> list[int]:
        """Tokens in each row that is in use."""
        return [row.length for row in self._rows]

    @property
    def lengths_on_device(self) -> Tensor:
        """The same as a tensor `[B]`, made once a step."""
        lengths = self.lengths
        if self._known[0] != lengths:
            self._known = lengths, torch.tensor(lengths, device=self._device)
        return self._known[1]

    def bytes_of(self, index: int) -> int:
        """Bytes of the pairs held in a row."""
        return self._rows[index].nbytes

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in every row. Tails that were opened before lie elsewhere afterwards."""
        if tokens > self._capacity:
            self._allocate(max(tokens, 2 * self._capacity))

    def open(self, tokens: int) -> Tail:
        """The next row, empty, with room for `tokens`."""
        self.reserve(tokens)
        row = self._row(len(self._rows))
        self._rows.append(row)
        return row

    def close(self, index: int) -> None:
        """Free a row; the last one moves there."""
        last = self._rows.pop()
        if index < len(self._rows):
            moved = self._row(index)
            moved.copy_from(last)
            self._rows[index] = moved

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store one token a row, `key, value [B,H,1,D]`; returns views of all rows, `[B,H,longest + 1,D]`.

        What lies in them behind a row's own length means nothing.
        """
        used, at = len(self._rows), self.lengths_on_device
        rows = torch.arange(used, device=self._device)
        keys, values = self._keys[layer], self._values[layer]
        keys[rows, :, at] = key[:, :, 0]
        values[rows, :, at] = value[:, :, 0]
        end = max(self.lengths) + 1
        return keys[:used, :, :end], values[:used, :, :end]

    def advance(self) -> None:
        """Make the token written to every layer of every row count."""
        for row in self._rows:
            row.advance(1)

    def _row(self, index: int) -> Tail:
        pairs = [(k[index : index + 1], v[index : index + 1]) for k, v in zip(self._keys, self._values, strict=True)]
        return Tail.over([k for k, _ in pairs], [v for _, v in pairs])

    def _allocate(self, capacity: int) -> None:
        sizes = [(self._size, shape.kv_heads, capacity, shape.head_dim) for shape in self._shapes]
        # Zeros: a row's unused end takes part in products, with weight zero, and must hold numbers.
        self._keys, self._values = (
            [torch.zeros(size, dtype=self._dtype, device=self._device) for size in sizes] for _ in range(2)
        )
        self._capacity = capacity
        old, self._rows = self._rows, []
        for row in old:
            grown = self._row(len(self._rows))
            grown.copy_from(row)
            self._rows.append(grown)
