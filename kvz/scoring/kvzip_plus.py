"""KVzip+ (the oracle of KVzap, arXiv 2601.07891): KVzip's weights times what they add to the residual stream.

    s+[j] = max over g, i of  a[g,i,j] * ||W_o,g v_j|| / ||h_i||

with a the weights of KVzip's softmax, W_o,g the part of the output projection that belongs to query head g, and h_i the
hidden state that enters the layer at row i of the repeat input.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvz.kernels.kvzip_score import column_max
from kvz.models.language_model import LanguageModel
from kvz.scoring.kvzip import KVzip
from kvz.scoring.repeat_pass import RepeatedChunk, RepeatPass

__all__ = ["KVzipPlus"]


@dataclass(frozen=True)
class KVzipPlus(KVzip):
    """The same repeat pass as KVzip's, at the same cost but for the norms, which are small."""

    @property
    def name(self) -> str:
        return "kvzip+"

    def _run(self, model: LanguageModel, ids: Tensor, position: int, chunk: RepeatedChunk) -> None:
        model.fill_watched(ids, position, _LargestContribution(chunk, model))


@dataclass(frozen=True)
class _LargestContribution(RepeatPass):
    """Scores by the largest contribution; `log_norms` has log ||h_i|| of the layer being attended, `[n]` float32."""

    model: LanguageModel
    log_norms: dict[int, Tensor] = field(default_factory=dict)

    def see(self, layer: int, hidden: Tensor) -> None:
        """Keep the norms of a layer's input, and drop those of the layer before."""
        self.log_norms.clear()
        self.log_norms[layer] = torch.linalg.vector_norm(hidden[0].float(), dim=-1).log()

    def score_head(
        self, layer: int, head: int, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, scale: float
    ) -> Tensor:
        group = query.shape[0]
        norms = self._value_norms(layer, head * group, group, value)
        of_group = [column_max(query[g], key, lse[g] + self.log_norms[layer], scale) * norms[g] for g in range(group)]
        return torch.stack(of_group).amax(0)

    def _value_norms(self, layer: int, first: int, group: int, value: Tensor) -> Tensor:
        """||W_o,g v_j|| of query heads first:first+group, `[G,m]`, by v^T (W^T W) v: D x D, not hidden x D, a pair."""
        projection = self.model.output_projection(layer)[:, first : first + group].float()
        gram = torch.einsum("xgd,xge->gde", projection, projection)
        values = value.float()
        squares = torch.einsum("gme,me->gm", values @ gram, values)
        return squares.clamp_min_(0).sqrt_()
