"""SparQ (arXiv 2312.04985): approximate scores from the dimensions where the query is largest choose tokens."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedLayer
from kvz.decode.policies.selection import (
    Rest,
    Selection,
    Selector,
    Units,
    context_keys,
    context_lengths,
    largest_dims,
    temperature,
)
from kvz.decode.policies.traffic import Traffic, pair_nbytes

__all__ = ["SparQ"]


class SparQ(Selector):
    """Half the budget reads some dimensions of every key, half the chosen tokens; the newest are among them.

    The mass that approximate scores leave on other tokens falls on the head's mean value.
    """

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.local = budget // 8  # the newest context tokens, always chosen
        self._layers: dict[int, tuple[Units, list[Tensor], list[int]]] = {}

        self._means: dict[int, Tensor] = {}
        self._read: dict[int, Traffic] = {}

    def prepare_layer(self, index: int, layer: RaggedLayer, prefix: int) -> None:
        lengths, dim = context_lengths(layer, prefix), layer.keys.shape[1]
        units = Units.of(layer, prefix, 1, [None if n <= self.budget else self.budget // 2 for n in lengths])
        dims = [0 if n <= self.budget else max(1, min(dim, dim * self.budget // n)) for n in lengths]
        self._layers[index] = units, context_keys(layer, prefix), dims
        self._means[index] = means = _mean_values(layer, prefix)
        looked = sum(n * d for n, d in zip(lengths, dims, strict=True))  # numbers of keys
        taken = sum(units.takes)
        nbytes = looked * layer.keys.element_size() + taken * pair_nbytes(layer) + means.nbytes
        self._read[index] = Traffic(taken + looked / (2 * dim), nbytes, taken)

    def choose(self, layer: int, query: Tensor, scale: float) -> Selection:
        units, keys, dims = self._layers[layer]
        logits = units.logits(query.shape[2], query.shape[1])
        newest = torch.zeros_like(logits[:, :1, 0])
        ordered = largest_dims(query, max(1, *dims))
        for head, of_head in enumerate(keys):
            if not dims[head]:  # taken whole
                logits[head, :, :, : len(of_head)] = 0
                continue
            chosen = ordered[head, :, : dims[head]]
            part = query[head].gather(2, chosen.unsqueeze(1).expand(-1, query.shape[2], -1))
            few = of_head.t()[chosen].float()
            logits[head, :, :, : len(of_head)] = part @ few * (scale / temperature(query[head], part))
            newest[head, :, max(0, len(of_head) - self.local) : len(of_head)] = 1
        weights = torch.softmax(logits, -1)
        selection = units.select(weights.mean(2) + newest)
        at = (selection.rows - units.begins[:, None, None]).clamp_min(0).masked_fill(~selection.valid, 0)
        found = weights.gather(3, at.unsqueeze(2).expand(-1, -1, query.shape[2], -1))
        covered = found.masked_fill(~selection.valid.unsqueeze(2), 0).sum(3)
        return Selection(selection.rows, selection.valid, Rest(covered, self._means[layer]))

    def read(self, layer: int) -> Traffic:
        return self._read[layer]

    @property
    def held_nbytes(self) -> int:
        return sum(means.nbytes for means in self._means.values())


def _mean_values(layer: RaggedLayer, prefix: int) -> Tensor:
    """The mean value of each head's context, `[H,D]` float32."""
    parts = [layer.values[first + prefix : last].float() for first, last in pairwise(layer.bounds)]
    return torch.stack([part.sum(0) / max(1, len(part)) for part in parts])
