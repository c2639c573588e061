"""Head-level methods: which heads keep everything is known for the model, and no document is ever scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvz.errors import UsageError
from kvz.scoring.allocation import Allocation
from kvz.scoring.budget import Budget
from kvz.scoring.head_allocation import Head
from kvz.scoring.head_score_file import DUO, KVZIP
from kvz.scoring.method import Context, ScoringMethod, Setting, Spans

if TYPE_CHECKING:
    from torch import Tensor

    from kvz.models.identity import ModelIdentity
    from kvz.models.language_model import LanguageModel
    from kvz.scoring.head_scores import HeadScores

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
        self._find(setting.model.identity)
        return (0, self.sink), (max(0, setting.length - self.window), setting.length)

    def provenance(self, setting: Setting, budget: Budget) -> dict[str, int | str]:
        """Which scores these are: a file may change, and a model be calibrated again."""
        found = self._find(setting.model.identity)
        return {"head_scores_sha256": found.digest(setting.model.geometry)}

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[N,S]` float32: each head's own for all its pairs."""
        of_heads = self._find(model.identity).rows(model.geometry)
        done(len(context.ids))
        return of_heads[:, None].expand(-1, len(context.ids)).contiguous()

    def _find(self, model: ModelIdentity) -> HeadScores:
        from kvz.scoring.head_scores import find_head_scores

        return find_head_scores(model, self.head_scores, self.kinds)


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
