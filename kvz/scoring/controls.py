"""Controls that look at nothing: what a method must beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.models.language_model import LanguageModel
from kvz.scoring.method import Context

__all__ = ["RandomPairs", "Recent"]


@dataclass(frozen=True)
class RandomPairs:
    """Pairs at random, the same ones for the same `seed`."""

    seed: int = 0

    @property
    def name(self) -> str:
        return "random"

    def parameters(self) -> dict[str, int | float | str]:
        return {"seed": self.seed}

    def recent(self, per_head: int, length: int) -> int:
        return 0

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        shape = (model.geometry.layers, model.geometry.kv_heads[0], len(context.ids))
        done(len(context.ids))
        return torch.rand(shape, generator=torch.Generator().manual_seed(self.seed))


@dataclass(frozen=True)
class Recent:
    """StreamingLLM (arXiv 2309.17453): `sink` first tokens and the most recent ones."""

    sink: int = 4

    @property
    def name(self) -> str:
        return "recent"

    def parameters(self) -> dict[str, int | float | str]:
        return {"sink": self.sink}

    def recent(self, per_head: int, length: int) -> int:
        return 0

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        length = len(context.ids)
        scores = torch.arange(length, dtype=torch.float32)
        scores[: self.sink] = length
        done(length)
        return scores.expand(model.geometry.layers, model.geometry.kv_heads[0], length).contiguous()
