"""The pruned cache: per layer, the surviving pairs of each KV head, flat, head after head. Never changed once built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvz.cache.full import FullCache
from kvz.cache.sliding import SlidingLayer
from kvz.geometry import Geometry

if TYPE_CHECKING:
    from kvz.cache.bit_planes import BitPlanes
    from kvz.cache.pages import PagedLayer

__all__ = ["RaggedCache", "RaggedLayer", "evict", "survivors"]


@dataclass(frozen=True, eq=False)
class RaggedLayer:
    """One layer's surviving pairs; of a sliding layer (`window` tokens, else None), the last window - 1 of every head.

    `keys, values [sum of head lengths, D]`, in position order inside a head; `offsets [H+1]` int64, head h owning rows
    offsets[h]:offsets[h+1]; `positions [sum]` int32, the RoPE position of each pair. `planes` and `pages` are
    indexes by which sparse decoding chooses among a full layer's context pairs, where an archive has them.
    """

    keys: Tensor
    values: Tensor
    offsets: Tensor
    positions: Tensor
    window: int | None = None
    planes: BitPlanes | None = None
    pages: PagedLayer | None = None

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """`offsets` as Python integers, so that no decode step has to ask the device."""
        return tuple(self.offsets.tolist())

    @property
    def heads(self) -> int:
        """Number of KV heads."""
        return len(self.bounds) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values, offsets and positions, without indexes."""
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values, self.offsets, self.positions))

    @property
    def index_nbytes(self) -> int:
        """Bytes of the indexes."""
        return sum(index.nbytes for index in (self.planes, self.pages) if index is not None)

    def to(self, device: torch.device) -> RaggedLayer:
        """The same layer on another device."""
        return RaggedLayer(
            self.keys.to(device),
            self.values.to(device),
            self.offsets.to(device),
            self.positions.to(device),
            self.window,
            None if self.planes is None else self.planes.to(device),
            None if self.pages is None else self.pages.to(device),
        )


@dataclass(frozen=True, eq=False)
class RaggedCache:
    """All layers, and `logical_length`: the tokens prefilled, evicted or not; a question starts at that position."""

    layers: tuple[RaggedLayer, ...]
    logical_length: int

    @property
    def pairs(self) -> int:
        """Pairs held over all layers and heads, the protected prefix included."""
        return sum(layer.bounds[-1] for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values, offsets and positions, without indexes."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def index_nbytes(self) -> int:
        """Bytes of the indexes by which sparse decoding chooses."""
        return sum(layer.index_nbytes for layer in self.layers)

    def to(self, device: torch.device) -> RaggedCache:
        """The same cache on another device."""
        return RaggedCache(tuple(layer.to(device) for layer in self.layers), self.logical_length)


def evict(
    full: FullCache,
    kept: Tensor,
    geometry: Geometry,
    prefix: int,
    done: Callable[[int], None] = lambda layer: None,
) -> RaggedCache:
    """Copy the survivors out of `full`, freeing each layer as soon as it is copied: one layer is held twice.

    `kept [N,S]` bool marks the context pairs to keep of the heads of full layers; the first `prefix` tokens are kept in
    every head. Sliding layers keep their last window. `done(layer)` is called after each layer.
    """
    layers = []
    for index in range(full.layers):
        layers.append(survivors(full, index, kept[geometry.rows(index)], prefix))
        full.release(index)
        done(index)
    return RaggedCache(tuple(layers), full.length)


def survivors(full: FullCache, index: int, kept: Tensor, prefix: int) -> RaggedLayer:
    """A copy of what one layer keeps: `kept [H,S]` bool and the prefix, or a sliding layer's last window."""
    sliding = full.sliding(index)
    if sliding is not None:
        return _last_window(sliding, full.length)
    return _marked(*full.stored(index), torch.nn.functional.pad(kept, (prefix, 0), value=True))


def _marked(keys: Tensor, values: Tensor, mask: Tensor) -> RaggedLayer:
    mask = mask.to(keys.device)
    heads, length = mask.shape
    offsets = torch.zeros(heads + 1, dtype=torch.int64, device=keys.device)
    offsets[1:] = mask.sum(1).cumsum(0)
    positions = torch.arange(length, dtype=torch.int32, device=keys.device).expand(heads, -1)[mask]
    return RaggedLayer(keys[mask], values[mask], offsets, positions)


def _last_window(sliding: SlidingLayer, length: int) -> RaggedLayer:
    """What a sliding layer needs to go on after `length` tokens."""
    heads, held, dim = sliding.keys.shape
    count = min(sliding.window - 1, held)
    keys, values = (
        t[:, held - count :].reshape(heads * count, dim).contiguous() for t in (sliding.keys, sliding.values)
    )
    offsets = torch.arange(heads + 1, device=keys.device) * count
    positions = torch.arange(length - count, length, dtype=torch.int32, device=keys.device).repeat(heads)
    return RaggedLayer(keys, values, offsets, positions, sliding.window)
