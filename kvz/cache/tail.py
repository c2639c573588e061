"""Tails: pairs of questions and of generated tokens, beside archives that are never touched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.geometry import LayerShape

__all__ = ["Tail", "TailPool"]

_FIRST_CAPACITY = 256  # tokens of a pool's tails to begin with


class Tail:
    """One sequence's keys and values: a `row` of memory `[rows,H,capacity,D]` of each layer.

    `write` puts a layer's new pairs after the current length, `advance` makes them count, `reset` forgets all of them:
    nothing is copied.
    """

    def __init__(self, shapes: Sequence[LayerShape], capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        """A tail in memory of its own, for `capacity` tokens."""
        sizes = [(1, shape.kv_heads, capacity, shape.head_dim) for shape in shapes]
        self._keys, self._values = ([torch.empty(s, dtype=dtype, device=device) for s in sizes] for _ in range(2))
        self.row = 0
        self.length = 0

    @classmethod
    def over(cls, keys: list[Tensor], values: list[Tensor], row: int) -> Tail:
        """An empty tail in a row of `keys, values [rows,H,capacity,D]` of each layer."""
        tail = cls.__new__(cls)
        tail._keys, tail._values, tail.row, tail.length = keys, values, row, 0
        return tail

    @property
    def capacity(self) -> int:
        """Tokens that there is room for."""
        return self._keys[0].shape[2]

    @property
    def memory_id(self) -> int:
        """The same for tails whose rows lie in one memory."""
        return id(self._keys)

    @property
    def nbytes(self) -> int:
        """Bytes of the pairs held, at the current length."""
        held = (*self._keys, *self._values)
        return sum(t.shape[1] * self.length * t.shape[3] * t.element_size() for t in held)

    def memory(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's memory that this tail is a row of: keys and values, `[rows,H,capacity,D]`."""
        return self._keys[layer], self._values[layer]

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store `key, value [H,n,D]` after the current length; returns views of all pairs, `[H,length+n,D]`."""
        end = self.length + key.shape[1]
        if end > self.capacity:
            raise RuntimeError(f"tail of {self.capacity} tokens is full")
        keys, values = self._keys[layer][self.row], self._values[layer][self.row]
        keys[:, self.length : end] = key
        values[:, self.length : end] = value
        return keys[:, :end], values[:, :end]

    def copy_from(self, other: Tail) -> None:
        """Take over the pairs of another tail of the same shape that is not larger."""
        self.length = other.length
        for mine, theirs in zip((*self._keys, *self._values), (*other._keys, *other._values), strict=True):
            mine[self.row, :, : self.length] = theirs[other.row, :, : self.length]

    def take_over(self, other: Tail) -> None:
        """Be the other tail from now on: its memory, its row and its length."""
        self._keys, self._values, self.row, self.length = other._keys, other._values, other.row, other.length

    def advance(self, n: int) -> None:
        """Make the last `n` tokens written to every layer count."""
        self.length += n

    def truncate(self, length: int) -> None:
        """Forget all tokens after the first `length`."""
        self.length = min(self.length, length)

    def reset(self) -> None:
        """Forget all tokens."""
        self.length = 0

    def clear(self) -> None:
        """Make the row zeros: what is no number would spoil what is attended beside it, masked or not."""
        for memory in (*self._keys, *self._values):
            memory[self.row].zero_()


class TailPool:
    """Tails of sequences that come and go, side by side in memory `[rows,H,capacity,D]` of each layer.

    The memory grows as it is needed, and tails that are open stay valid.
    """

    def __init__(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> None:
        self._shapes, self._dtype, self._device = tuple(shapes), dtype, device
        self._open: dict[int, Tail] = {}
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows = self._capacity = 0

    def growth(self, tokens: int) -> int:
        """Bytes that must be allocated before a tail of `tokens` can be opened; what is freed then is not counted."""
        rows, capacity = self._wanted(tokens)
        return 0 if (rows, capacity) == (self._rows, self._capacity) else rows * capacity * self._token_nbytes

    def open(self, tokens: int) -> Tail:
        """An empty tail with room for `tokens`."""
        rows, capacity = self._wanted(tokens)
        if (rows, capacity) != (self._rows, self._capacity):
            self._allocate(rows, capacity)
        row = next(row for row in range(self._rows) if row not in self._open)
        tail = Tail.over(self._keys, self._values, row)
        self._open[row] = tail
        return tail

    def close(self, tail: Tail) -> None:
        """Free a tail's row."""
        if self._open.get(tail.row) is tail:
            del self._open[tail.row]

    @property
    def _token_nbytes(self) -> int:
        return sum(2 * shape.kv_heads * shape.head_dim for shape in self._shapes) * self._dtype.itemsize

    def _wanted(self, tokens: int) -> tuple[int, int]:
        """Rows and capacity that the memory needs for one tail more."""
        rows = self._rows if len(self._open) < self._rows else max(1, 2 * self._rows)
        capacity = self._capacity if tokens <= self._capacity else max(tokens, _FIRST_CAPACITY, 2 * self._capacity)
        return rows, capacity

    def _allocate(self, rows: int, capacity: int) -> None:
        if not self._open:
            # Freed before what takes its place is allocated; where that fails, there is no memory.
            self._keys, self._values, self._rows, self._capacity = [], [], 0, 0
        sizes = [(rows, shape.kv_heads, capacity, shape.head_dim) for shape in self._shapes]
        # Zeros: a row's unused end takes part in products, with weight zero, and must hold numbers.
        keys, values = ([torch.zeros(size, dtype=self._dtype, device=self._device) for size in sizes] for _ in range(2))
        self._keys, self._values, self._rows, self._capacity = keys, values, rows, capacity
        for row, tail in self._open.items():
            grown = Tail.over(keys, values, row)
            grown.copy_from(tail)
            tail.take_over(grown)
