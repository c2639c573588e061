"""H2O (arXiv 2306.14048): half the budget for the keys that drew most attention, half for the most recent ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.sliding import SlidingLayer
from kvz.geometry import Geometry
from kvz.kernels.attention_sum import column_sum_heads
from kvz.models.attention import Told
from kvz.models.language_model import LanguageModel
from kvz.scoring.allocation import Allocation, Uniform
from kvz.scoring.method import Context, ScoringMethod, Setting, Spans, empty_scores
from kvz.scoring.replay import ReplayPass

__all__ = ["H2O"]

_CHUNK = 2048  # tokens replayed at a time


@dataclass(frozen=True)
class H2O(ScoringMethod):
    """Softmax mass a key received from all queries of the context at or after it, summed over the group.

    The context is replayed block by block: no `[S,S]` matrix is ever held.
    """

    @property
    def name(self) -> str:
        return "h2o"

    def allocation(self) -> Allocation:
        return Uniform()

    def protect(self, setting: Setting) -> Spans:
        """The most recent tokens, half of a head's budget."""
        return ((setting.length - min(setting.per_head // 2, setting.length), setting.length),)

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[N,S]` float32, on the CPU. One pass over prefix and context."""
        scores = empty_scores(model, len(context.ids))
        prompt = [*context.frame.prefix_ids, *context.ids]
        sliding = _no_past(model)
        for start in range(0, len(prompt), _CHUNK):
            ids = prompt[start : start + _CHUNK]
            replay = _Received(context, start, sliding, model.geometry, scores)
            counted = len(ids) - max(0, context.prefix - start)
            model.fill(torch.tensor(ids), start, Told(replay, done, max(0, counted), model.geometry.layers))
        return scores


def _no_past(model: LanguageModel) -> dict[int, SlidingLayer]:
    """The sliding layers before the first token."""
    layers = {}
    for index, shape in enumerate(model.geometry.shapes):
        if shape.window is not None:
            none = torch.empty(shape.kv_heads, 0, shape.head_dim, dtype=model.dtype, device=model.device)
            layers[index] = SlidingLayer(none, none, shape.window)
    return layers


@dataclass(frozen=True)
class _Received(ReplayPass):
    """Adds the attention that a block of queries pays to `scores [N,S]`."""

    geometry: Geometry
    scores: Tensor

    def watch(self, layer: int, query: Tensor, past: Tensor, own: Tensor, lse: Tensor, scale: float) -> None:
        scores = self.scores[self.geometry.rows(layer)]
        prefix = self.context.prefix
        if self.past > prefix:
            scores[:, : self.past - prefix] += column_sum_heads(query, past[:, prefix:], lse, scale).cpu()
        received = column_sum_heads(query, own, lse, scale, causal=True).cpu()
        skipped = max(0, prefix - self.past)  # the block's tokens that belong to the prefix
        start = self.past + skipped - prefix
        scores[:, start : start + max(0, received.shape[1] - skipped)] += received[:, skipped:]
