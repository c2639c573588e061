"""H2O (arXiv 2306.14048): half the budget for the keys that drew most attention, half for the most recent ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.kernels.attention_sum import column_sum
from kvz.models.language_model import LanguageModel
from kvz.scoring.method import Context
from kvz.scoring.replay import ReplayPass

__all__ = ["H2O"]

_CHUNK = 2048  # tokens replayed at a time


@dataclass(frozen=True)
class H2O:
    """Softmax mass a key received from all queries of the context at or after it, summed over the group.

    The context is replayed block by block: no `[S,S]` matrix is ever held.
    """

    @property
    def name(self) -> str:
        return "h2o"

    def parameters(self) -> dict[str, int | float | str]:
        return {}

    def recent(self, per_head: int, length: int) -> int:
        """Half of a head's budget."""
        return min(per_head // 2, length)

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[L,H,S]` float32, on the CPU. One pass over the context."""
        length = len(context.ids)
        scores = torch.zeros(model.geometry.layers, model.geometry.kv_heads[0], length)
        for start in range(0, length, _CHUNK):
            ids = context.ids[start : start + _CHUNK]
            past = context.prefix + start
            model.fill(torch.tensor(ids), past, _Received(context, past, scores))
            done(len(ids))
        return scores


@dataclass(frozen=True)
class _Received(ReplayPass):
    """Adds the attention that a block of queries pays to `scores [L,H,S]`."""

    scores: Tensor

    def watch_head(
        self, layer: int, head: int, query: Tensor, past: Tensor, own: Tensor, lse: Tensor, scale: float
    ) -> None:
        start = self.past - self.context.prefix
        if start:
            self.scores[layer, head, :start] += column_sum(query, past[self.context.prefix :], lse, scale).cpu()
        mine = column_sum(query, own, lse, scale, causal=True).cpu()
        self.scores[layer, head, start : start + len(mine)] += mine
