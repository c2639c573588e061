"""Exact-TopK: the tokens of the largest true weights; what every selection is measured against."""

from __future__ import annotations

from torch import Tensor

from kvz.cache.ragged import RaggedLayer
from kvz.decode.policies.selection import Selection, Selector, Units, context_keys, group_mean
from kvz.decode.policies.traffic import Traffic, pair_nbytes

__all__ = ["ExactTopK"]


class ExactTopK(Selector):
    """The whole budget goes to tokens: choosing them is not charged to it, but reads every key."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._layers: dict[int, tuple[Units, list[Tensor]]] = {}
        self._read: dict[int, Traffic] = {}

    def prepare_layer(self, index: int, layer: RaggedLayer, prefix: int) -> None:
        units = Units.of(layer, prefix, 1, [self.budget] * layer.heads)
        keys = context_keys(layer, prefix)
        taken = sum(units.takes)
        half = pair_nbytes(layer) / 2  # a key, or a value; those of keys that are chosen were read to choose
        self._layers[index] = units, keys
        self._read[index] = Traffic(taken, (sum(map(len, keys)) + taken) * half, taken)

    def choose(self, layer: int, query: Tensor, scale: float) -> Selection:
        units, keys = self._layers[layer]
        logits = units.logits(query.shape[2], query.shape[1])
        for head, of_head in enumerate(keys):
            logits[head, :, :, : len(of_head)] = query[head] @ of_head.float().t()
        return units.select(group_mean(logits * scale))

    def read(self, layer: int) -> Traffic:
        return self._read[layer]
