"""Low-bit selection: tokens chosen one by one by an index of a few bits a key, the bits that matter to a query first.

Where HSA reads bounds of pages in a few dimensions at full precision and takes whole pages, this reads, of every
token, the most significant bits of the dimensions where the group's queries weigh most, and takes single tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from kvz.cache.bit_planes import BitPlanes, planes_of
from kvz.cache.ragged import RaggedLayer
from kvz.decode.policies.selection import Selection, Selector, Units, context_lengths, group_mean
from kvz.decode.policies.traffic import Traffic, pair_nbytes
from kvz.kernels.decode_step import plane_scores, plane_step

if TYPE_CHECKING:
    from kvz.kernels.cpu.chosen_step import ChosenStep
    from kvz.kernels.cpu.plane_scores import PlaneScores
    from kvz.kernels.cpu.plane_step import PlaneStep

__all__ = ["LowBit"]

_PAIR_BITS = 32  # of a dimension of a pair of 16-bit key and value


@dataclass(frozen=True, eq=False)
class ChosenLayer:
    """What is chosen from in one layer, and how."""

    units: Units
    index: BitPlanes
    rows: list[int]
    read: Traffic
    made: bool  # the index was made for it, the archive has none
    kernel: PlaneScores | None

    def plain_scores(self, query: Tensor, scale: float) -> Tensor:
        """Mean over the group of the softmax of approximate scores, `[H,n,most]`, for `query [H,n,G,D]`."""
        tokens, group = query.shape[1:3]
        logits = self.units.logits(group, tokens)
        weights = self.index.weights(query)
        ordered = weights.abs().sum(2).topk(max(1, *self.rows), dim=2).indices
        parts = weights.gather(3, ordered.unsqueeze(2).expand(-1, -1, group, -1))
        for head, rows in enumerate(self.rows):
            count = self.units.counts[head]
            if not rows:  # taken whole
                logits[head, :, :, :count] = 0
                continue
            bits = self.index.rows(head, ordered[head, :, :rows])
            logits[head, :, :, :count] = (parts[head, :, :, :rows] @ bits)[..., :count] * scale
        return group_mean(logits)


class LowBit(Selector):
    """A part of the budget reads rows of the index, the rest tokens.

    The index gets `bits` a dimension on average, more where the query weighs more, as long as that takes no more than
    the share `most` of the budget. Both were chosen on documents that docs/methods.md does not measure on.
    """

    def __init__(self, budget: int, bits: float = 1.5, most: float = 0.4) -> None:
        super().__init__(budget)
        self.bits = bits
        self.most = most
        self.layers: dict[int, ChosenLayer] = {}

    def prepare_layer(self, index: int, layer: RaggedLayer, prefix: int) -> None:
        lengths, planes = context_lengths(layer, prefix), planes_of(layer, prefix)
        dim = layer.keys.shape[1]
        rows = [0 if n <= self.budget else self.rows_of(n, dim, planes.bits) for n in lengths]
        paid = [n * r / (_PAIR_BITS * dim) for n, r in zip(lengths, rows, strict=True)]
        takes = [int(self.budget - p) if r else None for r, p in zip(rows, paid, strict=True)]
        units = Units.of(layer, prefix, 1, takes)
        scored = sum(_row_nbytes(n) * r for n, r in zip(lengths, rows, strict=True))
        spans = sum(map(bool, rows)) * dim * planes.ranges.element_size()
        taken = sum(units.takes)
        read = Traffic(taken + sum(paid), scored + spans + taken * pair_nbytes(layer), taken)
        made = planes is not layer.planes
        self.layers[index] = ChosenLayer(units, planes, rows, read, made, plane_scores(planes, rows, lengths))

    def rows_of(self, length: int, dim: int, bits: int) -> int:
        """Rows of the index that a head of `length` pairs is scored with."""
        affordable = int(self.most * self.budget * _PAIR_BITS * dim / length)
        return max(1, min(bits * dim, affordable, int(self.bits * dim)))

    def choose(self, layer: int, query: Tensor, scale: float) -> Selection:
        held = self.layers[layer]
        if held.kernel is not None:
            return held.units.select(held.kernel.score(query, scale))
        return held.units.select(held.plain_scores(query, scale))

    def step(self, index: int, pairs: ChosenStep | None) -> PlaneStep | None:
        held = self.layers[index]
        return plane_step(pairs, held.kernel, held.units.takes)

    def read(self, layer: int) -> Traffic:
        return self.layers[layer].read

    @property
    def held_nbytes(self) -> int:
        return sum(held.index.nbytes for held in self.layers.values() if held.made)


def _row_nbytes(length: int) -> int:
    """Bytes of a row of the index, eight tokens in each."""
    return -(-length // 8)
