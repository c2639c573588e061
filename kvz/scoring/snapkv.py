"""SnapKV (arXiv 2404.14469): a pair matters as much as the last queries before an answer look at it and around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvz.errors import UsageError
from kvz.prompt import Frame, check_question, question_ids
from kvz.scoring.allocation import Allocation, Uniform
from kvz.scoring.method import Context, ScoringMethod, Setting, Spans, empty_scores

if TYPE_CHECKING:
    from torch import Tensor

    from kvz.models.language_model import LanguageModel

__all__ = ["SnapKV"]


@dataclass(frozen=True)
class SnapKV(ScoringMethod):
    """Attention of the last `window` tokens, summed over window and group, max-pooled over `kernel` positions.

    The window's own context tokens are always kept. With a `query`, a question known beforehand, the window is the end
    of the context with that question after it. `kernel` is odd; 63 makes it RocketKV's first stage.
    """

    window: int = 32
    kernel: int = 7
    query: str | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UsageError(f"window of {self.window} tokens: give 1 or more")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise UsageError(f"kernel {self.kernel}: give an odd number of positions, 1 or more")
        if self.query is not None:
            check_question(self.query)

    @property
    def name(self) -> str:
        return "snapkv"

    def allocation(self) -> Allocation:
        return Uniform()

    def protect(self, setting: Setting) -> Spans:
        """The part of the window that belongs to the context. Raises UsageError for a query that does not fit."""
        query = len(self._query_ids(setting.model, setting.frame))
        positions = setting.model.geometry.max_positions
        if len(setting.frame.prefix_ids) + setting.length + query > positions:
            raise UsageError(f"the query is {query} tokens, too long for the model's {positions} positions")
        before = self._before(setting.length, query)
        return ((before, setting.length),)

    def replayed(self, length: int) -> int:
        return min(self.window, length)

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[N,S]` float32, on the CPU; zero in the window, which is kept whatever its scores."""
        import torch
        from torch.nn.functional import max_pool1d

        from kvz.models.attention import Told
        from kvz.scoring.replay import WindowAttention

        length, query = len(context.ids), self._query_ids(model, context.frame)
        scores = empty_scores(model, length)
        before = self._before(length, len(query))
        if before:
            ids = torch.tensor([*context.ids[before:], *query])
            past = context.prefix + before
            sliding = context.cache.sliding_before(length - before)
            watch = WindowAttention(context, past, sliding, model.geometry, scores[:, :before], self.window)
            model.fill(ids, past, Told(watch, done, length, model.geometry.layers))
            kernel = min(self.kernel, 2 * before + 1)  # a wider one sees no more
            scores[:, :before] = max_pool1d(scores[:, :before], kernel, stride=1, padding=kernel // 2)
        return scores

    def _query_ids(self, model: LanguageModel, frame: Frame) -> list[int]:
        return [] if self.query is None else question_ids(model.tokenizer, frame.seam, self.query)

    def _before(self, length: int, query: int) -> int:
        """Context tokens before the window."""
        return min(length, max(0, length + query - self.window))
