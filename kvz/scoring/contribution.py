"""Contributions: attention weights times what they add to the residual stream, relative to what is there.

    e(g,i,j) = a(g,i,j) * ||W_o,g v_j|| / ||h_i||

with a the weights of KVzip's softmax, W_o,g the part of the output projection that belongs to query head g, and h_i the
hidden state that enters the layer at row i (KVzap, arXiv 2601.07891). In models that normalise the attention's output
before they add it (Gemma 3), W_o has the weights of that norm in it, and its root mean square at row i divides too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvz.kernels.attention_sum import column_sum_heads
from kvz.kernels.kvzip_score import column_max_heads
from kvz.models.language_model import LanguageModel
from kvz.scoring.repeat_pass import RepeatPass

__all__ = ["ContributionPass", "LargestContribution", "SquaredContributions"]

_BLOCK = 2048  # values at a time


@dataclass(frozen=True)
class ContributionPass(RepeatPass):
    """A repeat pass that knows the norms; `log_norms` has log ||h_i|| of the layer being attended, `[n]` float32."""

    model: LanguageModel
    log_norms: dict[int, Tensor] = field(default_factory=dict)

    def see(self, layer: int, hidden: Tensor) -> None:
        """Keep the norms of a layer's input, and drop those of the layer before."""
        self.log_norms.clear()
        norms = torch.linalg.vector_norm(hidden[0].float(), dim=-1)
        self.log_norms[layer] = norms.log().masked_fill(norms == 0, math.inf)  # relative to nothing: no say

    def see_attended(self, layer: int, attended: Tensor) -> None:
        """Where the output is normalised before it is added, its norm divides every contribution as well."""
        rms = self.model.attended_rms(layer, attended)
        if rms is not None:
            self.log_norms[layer] += rms[0].log()

    def value_norms(self, layer: int, group: int, value: Tensor) -> Tensor:
        """||W_o,g v_j|| of the `group` query heads of each KV head, `[H,G,m]`, for `value [H,m,D]`.

        By v^T (W^T W) v: D x D products, not hidden x D, a pair.
        """
        return torch.stack([self._of_head(layer, head * group, group, value[head]) for head in range(len(value))])

    def _of_head(self, layer: int, first: int, group: int, value: Tensor) -> Tensor:
        """Those of query heads first:first+group, `[G,m]`, for the values `[m,D]` of their KV head."""
        projection = self.model.output_projection(layer)[:, first : first + group].float()
        gram = torch.einsum("xgd,xge->gde", projection, projection)
        blocks = (value[start : start + _BLOCK].float() for start in range(0, len(value), _BLOCK))
        squares = [torch.einsum("gme,me->gm", block @ gram, block) for block in blocks]
        return torch.cat(squares, 1).clamp_min_(0).sqrt_()


@dataclass(frozen=True)
class LargestContribution(ContributionPass):
    """Scores by the largest contribution."""

    def score_layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, scale: float) -> Tensor:
        norms = self.value_norms(layer, query.shape[1], value)
        return column_max_heads(query, key, lse + self.log_norms[layer], scale, norms)


@dataclass(frozen=True)
class SquaredContributions(ContributionPass):
    """Adds up the squares of contributions over group and rows."""

    def score_layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, scale: float) -> Tensor:
        norms = self.value_norms(layer, query.shape[1], value)
        doubled = 2 * (lse + self.log_norms[layer])  # exp(2 x) is the square of exp(x)
        return column_sum_heads(query, key, doubled, 2 * scale, weight=norms.square())
