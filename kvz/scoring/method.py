"""What a scoring method is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kvz.cache.full import FullCache
from kvz.models.language_model import LanguageModel
from kvz.prompt import Frame

__all__ = ["Context", "ScoringMethod"]


@dataclass(frozen=True)
class Context:
    """A prefilled context: the frame around it, its ids, and the full cache of prefix + context."""

    frame: Frame
    ids: tuple[int, ...]
    cache: FullCache

    @property
    def prefix(self) -> int:
        """Tokens before the context, which get no score."""
        return len(self.frame.prefix_ids)


class ScoringMethod(Protocol):
    """Scores the pairs of a context: the higher, the more worth keeping."""

    @property
    def name(self) -> str:
        """Name in the registry and in manifests."""
        ...

    def parameters(self) -> Mapping[str, int | float | str]:
        """Everything that shapes the scores, for the manifest."""
        ...

    def recent(self, per_head: int, length: int) -> int:
        """How many of the `length` context tokens, the last ones, every head keeps whatever they score.

        `per_head` is the budget of one head, in pairs.
        """
        ...

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[L,H,S]` float32; `done` is told how many context tokens have been scored."""
        ...
