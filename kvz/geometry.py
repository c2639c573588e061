"""The geometry of a model's KV cache: what every room needs to know of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["Geometry", "LayerShape"]


@dataclass(frozen=True)
class LayerShape:
    """One layer's KV cache. `window` is None for full attention; a sliding layer's tokens see so many, itself included.

    Pairs are evicted from full layers only; a sliding layer keeps its last window, dense.
    """

    kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def kind(self) -> str:
        """The kind as manifests have it."""
        return "full" if self.window is None else "sliding"


@dataclass(frozen=True)
class Geometry:
    """Shape of a model's KV cache, and the longest context in tokens.

    The KV heads of all full layers, layer after layer, are the rows of a score matrix `[N,S]`.
    """

    query_heads: int
    shapes: tuple[LayerShape, ...]
    max_positions: int

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.shapes)

    @cached_property
    def row_layers(self) -> tuple[int, ...]:
        """The layer of each row of a score matrix: of each KV head that pairs are evicted from."""
        return tuple(i for i, shape in enumerate(self.shapes) if shape.window is None for _ in range(shape.kv_heads))

    @cached_property
    def _first_rows(self) -> dict[int, int]:
        return {layer: self.row_layers.index(layer) for layer in dict.fromkeys(self.row_layers)}

    @property
    def rows_total(self) -> int:
        """N: KV heads of all full layers."""
        return len(self.row_layers)

    def rows(self, layer: int) -> slice:
        """The rows of a full layer's heads in a score matrix; none for a sliding layer."""
        first = self._first_rows.get(layer)
        return slice(0, 0) if first is None else slice(first, first + self.shapes[layer].kv_heads)
