"""H2O (arXiv 2306.14048): half the budget for the keys that drew most attention, half for the most recent ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvz.scoring.allocation import Allocation, Uniform
from kvz.scoring.method import Context, ScoringMethod, Setting, Spans, empty_scores

if TYPE_CHECKING:
    from torch import Tensor

    from kvz.models.language_model import LanguageModel

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
        import torch

        from kvz.models.attention import Told
        from kvz.scoring.replay import ReceivedAttention, no_past

        scores = empty_scores(model, len(context.ids))
        prompt = [*context.frame.prefix_ids, *context.ids]
        sliding = no_past(model)
        for start in range(0, len(prompt), _CHUNK):
            ids = prompt[start : start + _CHUNK]
            replay = ReceivedAttention(context, start, sliding, model.geometry, scores)
            counted = len(ids) - max(0, context.prefix - start)
            model.fill(torch.tensor(ids), start, Told(replay, done, max(0, counted), model.geometry.layers))
        return scores
