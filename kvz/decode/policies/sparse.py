"""Sparse: a token attends the prefix and a few chosen pairs of each head."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.decode.beside import Beside, Part
from kvz.decode.policies.dense import DenseReader
from kvz.decode.policies.selection import Selection, Selector
from kvz.decode.policies.traffic import Traffic, pair_nbytes
from kvz.kernels.attention import grouped_attention
from kvz.kernels.chosen_attention import chosen_attention
from kvz.kernels.decode_step import chosen_step
from kvz.kernels.merge import merge_parts

if TYPE_CHECKING:
    from kvz.kernels.cpu.chosen_step import ChosenStep
    from kvz.kernels.cpu.plane_step import PlaneStep

__all__ = ["SparseReader"]


class SparseReader:
    """Lets a `selector`, which must have been prepared, choose what each token attends; `prefix` pairs in any case.

    Layers whose longest head the budget covers are read densely.
    """

    def __init__(self, cache: RaggedCache, prefix: int, selector: Selector, dense: DenseReader) -> None:
        self._cache = cache
        self._prefix = prefix
        self._selector = selector
        self._dense = dense
        self._covered = [_covered(layer.bounds, prefix + selector.budget) for layer in cache.layers]
        self._prefixes: dict[int, Tensor] = {}
        self._steps: dict[int, ChosenStep | None] = {}
        self._wholes: dict[int, PlaneStep | None] = {}

    def attend(self, layer: int, query: Tensor, scale: float, beside: Beside) -> Tensor:
        """Attention over prefix and choice, `query [H,G,n,D]`: n tokens, each with a selection of its own."""
        if self._covered[layer]:
            return self._dense.attend(layer, query, scale, beside)
        if beside.tails is not None and (whole := self._whole(layer)):
            return whole.attend(query.transpose(1, 2), scale, beside.tails).transpose(1, 2).flatten(1, 2)
        selection = self._selector.choose(layer, query.transpose(1, 2).float(), scale)
        if beside.tails is not None and selection.rest is None and (step := self._step(layer)):
            out = step.attend(query.transpose(1, 2), selection.rows, selection.valid, scale, beside.tails)
            return out.transpose(1, 2).flatten(1, 2)
        parts = [beside.part()]
        if self._prefix:
            parts.append(grouped_attention(query, *self._prefix_of(layer), scale))
        parts.append(self._over_chosen(layer, query, selection, scale))
        return merge_parts(parts)[0]

    def read(self, layer: int) -> Traffic:
        """What is chosen, the choosing, and the prefix."""
        stored = self._cache.layers[layer]
        if stored.window is not None or self._covered[layer]:
            return self._dense.read(layer)
        always = stored.heads * self._prefix
        return Traffic(always, always * pair_nbytes(stored), always) + self._selector.read(layer)

    @property
    def held_nbytes(self) -> int:
        """What the selector holds: pairs are read where they are."""
        return self._selector.held_nbytes

    def _whole(self, layer: int) -> PlaneStep | None:
        if layer not in self._wholes:
            self._wholes[layer] = self._selector.step(layer, self._step(layer))
        return self._wholes[layer]

    def _step(self, layer: int) -> ChosenStep | None:
        if layer not in self._steps:
            stored = self._cache.layers[layer]
            self._steps[layer] = chosen_step(stored.keys, stored.values, stored.bounds, self._prefix)
        return self._steps[layer]

    def _over_chosen(self, layer: int, query: Tensor, selection: Selection, scale: float) -> Part:
        stored = self._cache.layers[layer]
        out, lse = chosen_attention(query, stored.keys, stored.values, selection.rows, selection.valid, scale)
        if selection.rest is None:
            return out, lse
        share = selection.rest.coverage.transpose(1, 2).flatten(1).clamp(1e-6, 1)
        rest = (1 - share)[..., None] * selection.rest.means[:, None]
        return share[..., None] * out.float() + rest, lse - share.log()

    def _prefix_of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the prefix, `[H,P,D]` each, gathered anew: no pair is held twice."""
        stored = self._cache.layers[layer]
        if layer not in self._prefixes:
            begins = torch.tensor(stored.bounds[:-1], device=stored.keys.device)
            self._prefixes[layer] = begins[:, None] + torch.arange(self._prefix, device=stored.keys.device)
        rows = self._prefixes[layer]
        return stored.keys[rows], stored.values[rows]


def _covered(bounds: tuple[int, ...], most: int) -> bool:
    return all(last - first <= most for first, last in pairwise(bounds))
