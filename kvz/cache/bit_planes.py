"""Bit planes: an index of a few bits a key, of which a query reads the bits that matter to it.

A head's kept keys are quantised for each channel between its smallest and its largest value, and the bits of the codes
are stored apart: one row of packed bits for each dimension and each bit, most significant first. A product with a query
is then a sum over rows,

    q k_j  ~  sum over d, b of q_d range_d 2^-(b+1) bit_(d,b,j)  +  the same for every j

so any set of rows gives an approximate score, and the rows with the largest |q_d| range_d 2^-(b+1) give the best one:
large dimensions are read with more bits, small ones with fewer or with none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from kvz.cache.index_plan import BITS
from kvz.cache.ragged import RaggedLayer

__all__ = ["BitPlanes", "plane_bounds", "plane_layer", "planes_of"]


@dataclass(frozen=True, eq=False)
class BitPlanes:
    """One layer's index: `planes [bits D, bytes]` uint8, head after head, row b D + d being bit b of dimension d.

    A byte holds eight consecutive context tokens, the first in its lowest bit; the last byte of a head may have bits
    that mean nothing. `ranges [H,D]` float32 is what each channel spans. `bounds [H+1]`: each head's bytes.
    """

    planes: Tensor
    ranges: Tensor
    bounds: tuple[int, ...]

    @property
    def bits(self) -> int:
        """Planes of each dimension."""
        return self.planes.shape[0] // self.ranges.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        return self.planes.numel() + self.ranges.numel() * self.ranges.element_size()

    def to(self, device: torch.device) -> BitPlanes:
        """The same index on another device."""
        return BitPlanes(self.planes.to(device), self.ranges.to(device), self.bounds)

    def weights(self, query: Tensor) -> Tensor:
        """What each row adds to a score where its bit is set: `[H,n,G,bits D]` for `query [H,n,G,D]`."""
        halves = torch.tensor([2.0 ** -(b + 1) for b in range(self.bits)], device=query.device)
        scaled = query * self.ranges[:, None, None, :]
        weights: Tensor = halves[:, None] * scaled.unsqueeze(-2)
        return weights.flatten(-2)

    def rows(self, head: int, chosen: Tensor) -> Tensor:
        """Some rows of one head as numbers 0 and 1: `[*, 8 bytes]` float32 for `chosen [*]`."""
        part = self.planes[:, self.bounds[head] : self.bounds[head + 1]].index_select(0, chosen.reshape(-1))
        return self._bits_of_byte.index_select(0, part.reshape(-1).int()).view(*chosen.shape, -1)

    @cached_property
    def _bits_of_byte(self) -> Tensor:
        """The eight bits of every byte, lowest first: `[256, 8]` float32."""
        byte = torch.arange(256, device=self.planes.device)[:, None]
        return ((byte >> torch.arange(8, device=self.planes.device)) & 1).float()


def plane_layer(layer: RaggedLayer, prefix: int, bits: int = BITS) -> BitPlanes:
    """The index of a full layer whose heads begin with `prefix` tokens."""
    parts, ranges, lengths = [], [], []
    for first, last in pairwise(layer.bounds):
        keys = layer.keys[first + prefix : last].float()
        low, high = _span(keys)
        parts.append(_packed(_codes(keys, low, high - low, bits), bits))
        ranges.append(high - low)
        lengths.append(len(keys))
    return BitPlanes(torch.cat(parts, 1), torch.stack(ranges), plane_bounds(lengths))


def planes_of(layer: RaggedLayer, prefix: int) -> BitPlanes:
    """A layer's index: the stored one, or one made now."""
    return layer.planes if layer.planes is not None else plane_layer(layer, prefix)


def plane_bounds(lengths: Sequence[int]) -> tuple[int, ...]:
    """Where each head's bytes begin and end, for heads of so many context tokens: `[H+1]`."""
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + -(-length // 8))
    return tuple(bounds)


def _span(keys: Tensor) -> tuple[Tensor, Tensor]:
    if not len(keys):
        nothing = keys.new_zeros(keys.shape[1])
        return nothing, nothing
    return keys.amin(0), keys.amax(0)


def _codes(keys: Tensor, low: Tensor, span: Tensor, bits: int) -> Tensor:
    """Which of 2^bits equal cells of its channel each key lies in: `[L,D]` uint8."""
    cells: int = 2**bits
    share: Tensor = (keys - low) / span.clamp_min(torch.finfo(torch.float32).tiny)
    return (share * cells).floor().clamp(0, cells - 1).to(torch.uint8)


def _packed(codes: Tensor, bits: int) -> Tensor:
    """`codes [L,D]` as planes `[bits D, ceil(L / 8)]`."""
    length, dim = codes.shape
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -length % 8)).t().reshape(dim, -1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=codes.device)
    planes = [(((padded >> (bits - 1 - b)) & 1) << places).sum(2, dtype=torch.uint8) for b in range(bits)]
    return torch.cat(planes)
