"""What a sparse policy chooses of a layer for each token, and how: the interface of HSA, Quest, SparQ and the others.

All heads of a layer, and all tokens of a pass, are chosen for at once; the heads of a GQA group share a selection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.decode.policies.traffic import Traffic

if TYPE_CHECKING:
    from kvz.kernels.cpu.chosen_step import ChosenStep
    from kvz.kernels.cpu.plane_step import PlaneStep

__all__ = [
    "Rest",
    "Selection",
    "Selector",
    "Units",
    "context_keys",
    "context_lengths",
    "group_mean",
    "largest_dims",
    "temperature",
]


@dataclass(frozen=True, eq=False)
class Selection:
    """`rows [H,n,K]` of the layer's pairs to attend, any order, for each head and token, where `valid [H,n,K]`.

    `rest`, where a policy estimates it, is what lies on the others.
    """

    rows: Tensor
    valid: Tensor
    rest: Rest | None = None


@dataclass(frozen=True, eq=False)
class Rest:
    """Pairs that are not attended: the softmax's mass on them, 1 - `coverage [H,n,G]`, falls on `means [H,D]` float32.

    `coverage` is the share of the mass that lies on the rows that are chosen, `means` are values.
    """

    coverage: Tensor
    means: Tensor


@dataclass(frozen=True, eq=False)
class Units:
    """What is chosen from in a layer: units of `size` consecutive context tokens, `takes[h]` of `counts[h]` in head h.

    `begins, lengths [H]`: each head's first context row among the layer's pairs, and its context pairs.
    """

    size: int
    begins: Tensor
    lengths: Tensor
    counts: tuple[int, ...]
    takes: tuple[int, ...]

    @classmethod
    def of(cls, layer: RaggedLayer, prefix: int, size: int, takes: Sequence[int | None]) -> Units:
        """Of a layer whose heads begin with `prefix` tokens; None takes a head whole."""
        lengths = context_lengths(layer, prefix)
        counts = tuple(-(-length // size) for length in lengths)
        taken = tuple(
            count if take is None else min(max(1, take), count) for take, count in zip(takes, counts, strict=True)
        )
        device = layer.keys.device
        begins = torch.tensor(layer.bounds[:-1], device=device) + prefix
        return cls(size, begins, torch.tensor(lengths, device=device), counts, taken)

    @property
    def most(self) -> int:
        """Units of the longest head."""
        return max(self.counts)

    def logits(self, group: int, tokens: int) -> Tensor:
        """Room for the scores of all units, `[H,n,G,most]` float32; units that do not exist are at -inf."""
        shape = (len(self.counts), tokens, group, self.most)
        return torch.full(shape, float("-inf"), device=self.begins.device)

    def select(self, scores: Tensor) -> Selection:
        """The tokens of the best units, for `scores [H,n,most]`; of units that do not exist, scores are ignored."""
        best = scores.masked_fill(self._absent, -1).topk(max(self.takes), dim=2).indices
        tokens = (best.unsqueeze(-1) * self.size + self._inside).flatten(2)
        valid = self._taken & (tokens < self.lengths[:, None, None])
        rows = torch.where(valid, tokens + self.begins[:, None, None], self._nothing)
        return Selection(rows, valid)

    @cached_property
    def _taken(self) -> Tensor:
        """Which tokens of the best units count, `[H,1,K]` bool."""
        takes = torch.tensor(self.takes, device=self.begins.device) * self.size
        return torch.arange(max(self.takes) * self.size, device=self.begins.device) < takes[:, None, None]

    @cached_property
    def _absent(self) -> Tensor:
        """Which units do not exist, `[H,1,most]` bool: where all scores are zero, they could be chosen too."""
        counts = torch.tensor(self.counts, device=self.begins.device)
        return torch.arange(self.most, device=self.begins.device) >= counts[:, None, None]

    @cached_property
    def _inside(self) -> Tensor:
        return torch.arange(self.size, device=self.begins.device)

    @cached_property
    def _nothing(self) -> Tensor:
        """A row to point at where there is no token: any that exists."""
        return torch.zeros((), dtype=torch.int64, device=self.begins.device)


class Selector(ABC):
    """Chooses which pairs of a layer new tokens attend, within a budget of pairs a head and step."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def prepare(self, cache: RaggedCache, prefix: int) -> None:
        """Look at the archive once, before the first question; `prefix` pairs of every head are not to be chosen."""
        for index, layer in enumerate(cache.layers):
            if layer.window is None:
                self.prepare_layer(index, layer, prefix)

    @abstractmethod
    def prepare_layer(self, index: int, layer: RaggedLayer, prefix: int) -> None:
        """Look at one full layer."""

    @abstractmethod
    def choose(self, layer: int, query: Tensor, scale: float) -> Selection:
        """The pairs for `query [H,n,G,D]` float32, n tokens that are chosen for one by one."""

    def step(self, index: int, pairs: ChosenStep | None) -> PlaneStep | None:
        """One kernel that chooses and attends in a layer, where there is one for this policy and machine."""
        return None

    @abstractmethod
    def read(self, layer: int) -> Traffic:
        """What a token's step reads of a layer: to choose, and what is chosen."""

    @property
    def held_nbytes(self) -> int:
        """Bytes of the tensors that were made by `prepare` to choose by, and are not the archive's."""
        return 0


def context_lengths(layer: RaggedLayer, prefix: int) -> list[int]:
    """Context pairs of each head."""
    return [last - first - prefix for first, last in pairwise(layer.bounds)]


def context_keys(layer: RaggedLayer, prefix: int) -> list[Tensor]:
    """Views of each head's keys `[L,D]`, without the prefix."""
    lengths = context_lengths(layer, prefix)
    return [layer.keys[b - length : b] for b, length in zip(layer.bounds[1:], lengths, strict=True)]


def largest_dims(query: Tensor, most: int) -> Tensor:
    """The `most` dimensions with the largest sum of |q| over the group, largest first: `[H,n,most]`."""
    return query.abs().sum(2).topk(most, dim=2).indices


def temperature(query: Tensor, chosen: Tensor) -> Tensor:
    """Root of the share of ||q||_1 in the chosen dimensions, `[H,n,G,1]`, for `chosen [H,n,G,dims]` of the query."""
    tiny = torch.finfo(torch.float32).tiny
    share = chosen.abs().sum(-1, keepdim=True) / query.abs().sum(-1, keepdim=True).clamp_min(tiny)
    return share.clamp_min(1e-12).sqrt()


def group_mean(logits: Tensor) -> Tensor:
    """Softmax of each query head, then the group's mean: `[H,n,G,U]` -> `[H,n,U]`."""
    return torch.softmax(logits, -1).mean(2)
