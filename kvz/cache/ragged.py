"""The pruned cache: per layer, the surviving pairs of each KV head, flat, head after head. Never changed once built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kvz.cache.full import FullCache

__all__ = ["RaggedCache", "RaggedLayer", "evict"]


@dataclass(frozen=True, eq=False)
class RaggedLayer:
    """One layer's surviving pairs.

    `keys, values [sum of head lengths, D]`, in position order inside a head; `offsets [H+1]` int64, head h owning rows
    offsets[h]:offsets[h+1]; `positions [sum]` int32, the RoPE position of each pair.
    """

    keys: Tensor
    values: Tensor
    offsets: Tensor
    positions: Tensor

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
        """Bytes of keys, values, offsets and positions."""
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values, self.offsets, self.positions))

    def to(self, device: torch.device) -> RaggedLayer:
        """The same layer on another device."""
        return RaggedLayer(*(t.to(device) for t in (self.keys, self.values, self.offsets, self.positions)))


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
        """Bytes resident."""
        return sum(layer.nbytes for layer in self.layers)

    def to(self, device: torch.device) -> RaggedCache:
        """The same cache on another device."""
        return RaggedCache(tuple(layer.to(device) for layer in self.layers), self.logical_length)


def evict(full: FullCache, kept: Tensor, prefix: int, done: Callable[[int], None] = lambda layer: None) -> RaggedCache:
    """Copy the survivors out of `full`, freeing each full layer as soon as it is copied: one layer is held twice.

    `kept [L,H,S]` bool marks the context pairs to keep; the first `prefix` tokens are kept in every head.
    `done(layer)` is called after each layer.
    """
    length = full.length
    layers = []
    for index, mask in _masks(kept, prefix):
        keys, values = full.layer(index)
        mask = mask.to(keys.device)
        heads = mask.shape[0]
        offsets = torch.zeros(heads + 1, dtype=torch.int64, device=keys.device)
        offsets[1:] = mask.sum(1).cumsum(0)
        positions = torch.arange(length, dtype=torch.int32, device=keys.device).expand(heads, -1)[mask]
        layers.append(RaggedLayer(keys[mask], values[mask], offsets, positions))
        full.release(index)
        done(index)
    return RaggedCache(tuple(layers), length)


def _masks(kept: Tensor, prefix: int) -> Iterator[tuple[int, Tensor]]:
    for index in range(kept.shape[0]):
        yield index, torch.nn.functional.pad(kept[index], (prefix, 0), value=True)
