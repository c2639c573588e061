"""KVzip (arXiv 2505.23416): a pair matters as much as the model looks at it while repeating the context.

The context is repeated chunk by chunk. The score of a pair of a chunk is the largest weight that any query of the
group, on any row of the repeat input, gives it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvz.errors import UsageError
from kvz.prompt import check_instruction, repeat_ids
from kvz.scoring.method import Context, ScoringMethod, empty_scores

if TYPE_CHECKING:
    from torch import Tensor

    from kvz.models.language_model import LanguageModel
    from kvz.scoring.repeat_pass import RepeatedChunk, RepeatPass

__all__ = ["KVzip", "RepeatingMethod"]

_WEIGHTS = ("softmax", "logit")


@dataclass(frozen=True)
class RepeatingMethod(ScoringMethod):
    """Scores from a repeat pass, `chunk` tokens at a time (the paper's m), under one of the `instruction`s."""

    chunk: int = 2048
    instruction: str = "repeat"

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise UsageError(f"chunk of {self.chunk} tokens: give 1 or more")
        check_instruction(self.instruction)

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[N,S]` float32, on the CPU. One pass over the context, in forward passes of `chunk` tokens."""
        import torch

        from kvz.models.attention import Told
        from kvz.scoring.repeat_pass import RepeatedChunk

        length = len(context.ids)
        scores = empty_scores(model, length)
        for start in range(0, length, self.chunk):
            end = min(start + self.chunk, length)
            ids = repeat_ids(model.tokenizer, context.frame.seam, context.ids, start, end, self.instruction)
            store = self.chunk_pass(model, RepeatedChunk(context, model.geometry, start, end, scores))
            told = Told(store, done, end - start, model.geometry.layers)
            model.fill_watched(torch.tensor(ids), context.prefix + length, told)
        return scores

    @abstractmethod
    def chunk_pass(self, model: LanguageModel, chunk: RepeatedChunk) -> RepeatPass:
        """The pair store that scores one chunk."""


@dataclass(frozen=True)
class KVzip(RepeatingMethod):
    """The paper's method; `weight` is "softmax", or "logit" for its variant without one."""

    weight: str = "softmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight not in _WEIGHTS:
            raise UsageError(f"no weight '{self.weight}': give one of {', '.join(_WEIGHTS)}")

    @property
    def name(self) -> str:
        return "kvzip"

    def chunk_pass(self, model: LanguageModel, chunk: RepeatedChunk) -> RepeatPass:
        from kvz.scoring.repeat_pass import LargestLogit, LargestWeight

        return LargestWeight(chunk) if self.weight == "softmax" else LargestLogit(chunk)
