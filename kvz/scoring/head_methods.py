"""Head-level methods: which heads keep everything is known for the model, and no document is ever scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvz.errors import UsageError
from kvz.models.language_model import LanguageModel
from kvz.scoring.allocation import Allocation
from kvz.scoring.budget import Budget
from kvz.scoring.head_allocation import Head
from kvz.scoring.head_scores import DUO, KVZIP, find_head_scores
from kvz.scoring.method import Context, ScoringMethod, Setting, Spans

__all__ = ["DuoAttention", "KVzipHead"]


@dataclass(frozen=True)
class KVzipHead(ScoringMethod):
    """KVzip's context-independent variant: the heads with the highest scores keep all their pairs.

    The others, the streaming heads, keep the first `sink` and the last `window` tokens of the context beside the
    prefix. Scores are those of `kvz calibrate`, or in the file `head_scores`.
    """

    sink: int = 4
    window: int = 64
    head_scores: str | None = None
    kinds: ClassVar[tuple[str, ...]] = (KVZIP,)

    def __post_init__(self) -> None:
        if self.sink < 0 or self.window < 0:
            raise UsageError(f"sink of {self.sink} and window of {self.window} tokens: give 0 or more")

    @property
    def name(self) -> str:
        return "kvzip-head"

    def allocation(self) -> Allocation:
        return Head()

    def protect(self, setting: Setting) -> Spans:
        """What a streaming head keeps; raises ScoringError if there are no scores of this model."""
        find_head_scores(setting.model.identity, self.head_scores, self.kinds)
        return (0, self.sink), (max(0, setting.length - self.window), setting.length)

    def provenance(self, setting: Setting, budget: Budget) -> dict[str, int | str]:
        """Which scores these are: a file may change, and a model be calibrated again."""
        found = find_head_scores(setting.model.identity, self.head_scores, self.kinds)
        return {"head_scores_sha256": found.digest(setting.model.geometry)}

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[N,S]` float32: each head's own for all its pairs."""
        of_heads = find_head_scores(model.identity, self.head_scores, self.kinds).rows(model.geometry)
        done(len(context.ids))
        return of_heads[:, None].expand(-1, len(context.ids)).contiguous()


@dataclass(frozen=True)
class DuoAttention(KVzipHead):
    """DuoAttention (arXiv 2410.10819): retrieval heads keep everything, streaming heads sink and recent window.

    Which heads are which is read from its pattern file where one was imported, else from KVzip's head scores.
    """

    sink: int = 64
    window: int = 256
    kinds: ClassVar[tuple[str, ...]] = (DUO, KVZIP)

    @property
    def name(self) -> str:
        return "duo"
