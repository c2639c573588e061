"""The repeat pass: a chunk of the context is repeated over the full cache, and its pairs are scored on the way.

The softmax that KVzip scores with runs over [prefix | the chunk | the repeat input's own keys, causal]; attention
itself sees the whole cache. The keys are visited in segments, so that the log-sum-exp over the score's softmax falls
out of the attention, and nothing but the chunk's columns is computed twice. One KV head at a time is attended, which
keeps the extra memory small; then all heads of the layer are scored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.geometry import Geometry
from kvz.kernels.attention import grouped_attention
from kvz.kernels.kvzip_score import column_max_heads, largest_logit_heads
from kvz.kernels.merge import merge_parts
from kvz.scoring.method import Context

__all__ = ["LargestLogit", "LargestWeight", "RepeatPass", "RepeatedChunk"]


@dataclass(frozen=True, eq=False)
class RepeatedChunk:
    """Tokens start:end of a context, and where their scores go: `scores [N,S]`, rows as `geometry` has them."""

    context: Context
    geometry: Geometry
    start: int
    end: int
    scores: Tensor

    @property
    def rows(self) -> slice:
        """The chunk's rows in the full cache."""
        return slice(self.context.prefix + self.start, self.context.prefix + self.end)

    @property
    def scored_segments(self) -> list[slice]:
        """Cached rows inside the score's softmax: the prefix and the chunk, as one segment where they touch."""
        return [slice(0, self.rows.stop)] if self.start == 0 else [slice(0, self.context.prefix), self.rows]

    @property
    def other_segments(self) -> list[slice]:
        """Cached rows that are attended but stand outside the score's softmax."""
        return [slice(self.context.prefix, self.rows.start), slice(self.rows.stop, self.context.cache.length)]


@dataclass(frozen=True)
class RepeatPass(ABC):
    """Pair store of one chunk's pass: attends, and writes the chunk's scores. Sliding layers attend, and get none."""

    chunk: RepeatedChunk

    def see(self, layer: int, hidden: Tensor) -> None:  # noqa: B027 - most passes need no look
        """Shown the hidden states `[1,n,hidden]` that enter a layer."""

    def see_attended(self, layer: int, attended: Tensor) -> None:  # noqa: B027 - as above
        """Shown a layer's attention output `[1,n,Hq,D]`, before the layer is scored."""

    @abstractmethod
    def score_layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, scale: float) -> Tensor:
        """Scores `[H,m]` float32 of the KV heads' chunk, `key, value [H,m,D]`.

        `query [H,G,n,D]` are the groups' rows of the repeat input, `lse [H,G,n]` their log-sum-exp over the score's
        softmax.
        """

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of the repeat input over the full cache and itself: `[1,n,Hq,D]`."""
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        sliding = self.chunk.context.cache.sliding(layer)
        if sliding is not None:
            return sliding.attend(grouped, key[0], value[0], scale).reshape(1, -1, n, dim).transpose(1, 2)
        out = torch.empty_like(grouped)
        keys, values = self.chunk.context.cache.layer(layer)
        columns = self.chunk.rows
        scores = self.chunk.scores[self.chunk.geometry.rows(layer), self.chunk.start : self.chunk.end]
        lses = []
        for head in range(heads):
            one = slice(head, head + 1)
            rows = grouped[one].contiguous()
            own = grouped_attention(rows, key[0, one], value[0, one], scale, causal=True)
            scored = merge_parts([own, *_over(rows, keys[one], values[one], scale, self.chunk.scored_segments)])
            others = _over(rows, keys[one], values[one], scale, self.chunk.other_segments)
            out[head] = merge_parts([scored, *others])[0].view_as(rows[0])
            lses.append(scored[1].view(-1, n))
        attended = out.reshape(1, -1, n, dim).transpose(1, 2)
        self.see_attended(layer, attended)
        lse = torch.stack(lses)
        scores.copy_(self.score_layer(layer, grouped, keys[:, columns], values[:, columns], lse, scale))
        return attended


@dataclass(frozen=True)
class LargestWeight(RepeatPass):
    """Scores by the largest weight over group and rows."""

    def score_layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, scale: float) -> Tensor:
        return column_max_heads(query, key, lse, scale)


@dataclass(frozen=True)
class LargestLogit(RepeatPass):
    """Scores by the largest scaled product of query and key."""

    def score_layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, scale: float) -> Tensor:
        return largest_logit_heads(query, key, scale)


def _over(
    rows: Tensor, keys: Tensor, values: Tensor, scale: float, segments: list[slice]
) -> list[tuple[Tensor, Tensor]]:
    return [
        grouped_attention(rows, keys[:, part], values[:, part], scale) for part in segments if part.stop > part.start
    ]
