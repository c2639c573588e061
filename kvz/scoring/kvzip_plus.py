"""KVzip+ (the oracle of KVzap, arXiv 2601.07891): the largest contribution over group and rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvz.kernels.kvzip_score import column_max_heads
from kvz.models.language_model import LanguageModel
from kvz.scoring.contribution import ContributionPass
from kvz.scoring.kvzip import RepeatingMethod
from kvz.scoring.repeat_pass import RepeatedChunk, RepeatPass

__all__ = ["KVzipPlus"]


@dataclass(frozen=True)
class KVzipPlus(RepeatingMethod):
    """The same repeat pass as KVzip's, at the same cost but for the norms, which are small."""

    @property
    def name(self) -> str:
        return "kvzip+"

    def chunk_pass(self, model: LanguageModel, chunk: RepeatedChunk) -> RepeatPass:
        return _LargestContribution(chunk, model)


@dataclass(frozen=True)
class _LargestContribution(ContributionPass):
    """Scores by the largest contribution."""

    def score_layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, scale: float) -> Tensor:
        norms = self.value_norms(layer, query.shape[1], value)
        return column_max_heads(query, key, lse + self.log_norms[layer], scale, norms)
