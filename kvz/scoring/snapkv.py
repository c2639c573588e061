"""SnapKV (arXiv 2404.14469): a pair matters as much as the context's last queries look at it and around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from kvz.errors import UsageError
from kvz.kernels.attention_sum import column_sum
from kvz.models.language_model import LanguageModel
from kvz.scoring.method import Context
from kvz.scoring.replay import ReplayPass

__all__ = ["SnapKV"]


@dataclass(frozen=True)
class SnapKV:
    """Attention of the last `window` tokens, summed over window and group, max-pooled over `kernel` positions.

    The window itself is always kept. `kernel` is odd; 63 makes it RocketKV's first stage.
    """

    window: int = 32
    kernel: int = 7

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UsageError(f"window of {self.window} tokens: give 1 or more")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise UsageError(f"kernel {self.kernel}: give an odd number of positions, 1 or more")

    @property
    def name(self) -> str:
        return "snapkv"

    def parameters(self) -> dict[str, int | float | str]:
        return {"window": self.window, "kernel": self.kernel}

    def recent(self, per_head: int, length: int) -> int:
        """The window."""
        return min(self.window, length)

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[L,H,S]` float32, on the CPU; zero in the window, which is kept whatever its scores."""
        length = len(context.ids)
        scores = torch.zeros(model.geometry.layers, model.geometry.kv_heads[0], length)
        before = length - self.recent(length, length)
        if before:
            past = context.prefix + before
            model.fill(torch.tensor(context.ids[before:]), past, _Window(context, past, scores[:, :, :before]))
            pooled = max_pool1d(scores[:, :, :before], self.kernel, stride=1, padding=self.kernel // 2)
            scores[:, :, :before] = pooled
        done(length)
        return scores


@dataclass(frozen=True)
class _Window(ReplayPass):
    """Writes the window's summed attention into `scores [L,H,past - prefix]`."""

    scores: Tensor

    def watch_head(
        self, layer: int, head: int, query: Tensor, past: Tensor, own: Tensor, lse: Tensor, scale: float
    ) -> None:
        self.scores[layer, head] = column_sum(query, past[self.context.prefix :], lse, scale)
