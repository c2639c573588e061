"""KVzip+ (the oracle of KVzap, arXiv 2601.07891): the largest contribution over group and rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvz.scoring.kvzip import RepeatingMethod

if TYPE_CHECKING:
    from kvz.models.language_model import LanguageModel
    from kvz.scoring.repeat_pass import RepeatedChunk, RepeatPass

__all__ = ["KVzipPlus"]


@dataclass(frozen=True)
class KVzipPlus(RepeatingMethod):
    """The same repeat pass as KVzip's, at the same cost but for the norms, which are small."""

    @property
    def name(self) -> str:
        return "kvzip+"

    def chunk_pass(self, model: LanguageModel, chunk: RepeatedChunk) -> RepeatPass:
        from kvz.scoring.contribution import LargestContribution

        return LargestContribution(chunk, model)
