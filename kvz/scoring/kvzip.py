"""KVzip (arXiv 2505.23416): a pair matters as much as the model looks at it while repeating the context.

The context is repeated chunk by chunk. The score of a pair of a chunk is the largest weight that any query of the
group, on any row of the repeat input, gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.errors import UsageError
from kvz.kernels.kvzip_score import column_max
from kvz.models.language_model import LanguageModel
from kvz.prompt import repeat_ids
from kvz.scoring.method import Context
from kvz.scoring.repeat_pass import RepeatedChunk, RepeatPass

__all__ = ["KVzip"]


@dataclass(frozen=True)
class KVzip:
    """The paper's method; `chunk` is its m, in tokens."""

    chunk: int = 2048

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise UsageError(f"chunk of {self.chunk} tokens: give 1 or more")

    @property
    def name(self) -> str:
        return "kvzip"

    def parameters(self) -> dict[str, int | float | str]:
        return {"chunk": self.chunk}

    def recent(self, per_head: int, length: int) -> int:
        """None: every pair stands for itself."""
        return 0

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[L,H,S]` float32, on the CPU. One pass over the context, in forward passes of `chunk` tokens."""
        layers, heads, length = model.geometry.layers, model.geometry.kv_heads[0], len(context.ids)
        scores = torch.empty(layers, heads, length, dtype=torch.float32)
        after = context.prefix + length
        for start in range(0, length, self.chunk):
            end = min(start + self.chunk, length)
            repeat = repeat_ids(model.tokenizer, context.frame.seam, context.ids, start, end)
            self._run(model, torch.tensor(repeat), after, RepeatedChunk(context, start, end, scores))
            done(end - start)
        return scores

    def _run(self, model: LanguageModel, ids: Tensor, position: int, chunk: RepeatedChunk) -> None:
        """Run a chunk's repeat input `ids`, whose first RoPE position is `position`, and write the chunk's scores."""
        model.fill(ids, position, LargestWeight(chunk))


@dataclass(frozen=True)
class LargestWeight(RepeatPass):
    """Scores by the largest weight over group and rows."""

    def score_head(
        self, layer: int, head: int, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, scale: float
    ) -> Tensor:
        return column_max(query.flatten(0, 1), key, lse.flatten(), scale)
