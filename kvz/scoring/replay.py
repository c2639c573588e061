"""The replay pass: tokens of the context go through the model once more, to be watched as queries.

They attend what they attended in the prefill, so nothing changes but that their queries and log-sum-exps are seen.
Sliding layers attend the window that was before the replayed tokens then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.sliding import SlidingLayer
from kvz.geometry import Geometry
from kvz.kernels.attention import grouped_attention
from kvz.kernels.attention_sum import column_sum_heads
from kvz.kernels.merge import merge_parts
from kvz.models.language_model import LanguageModel
from kvz.scoring.method import Context

__all__ = ["ReceivedAttention", "ReplayPass", "WindowAttention", "no_past"]


@dataclass(frozen=True)
class ReplayPass(ABC):
    """Pair store of tokens that follow the first `past` rows of the full cache, and attend those and themselves.

    `past` counts prefix and context tokens; `sliding` has the state of sliding layers at that point, and is moved on.
    """

    context: Context
    past: int
    sliding: Mapping[int, SlidingLayer]

    @abstractmethod
    def watch(self, layer: int, query: Tensor, past: Tensor, own: Tensor, lse: Tensor, scale: float) -> None:
        """See a layer: `query [H,G,n,D]`, keys `past [H,past,D]` and `own [H,n,D]`, `lse [H,G,n]` over all they see."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of the replayed tokens: `[1,n,Hq,D]`."""
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        if layer in self.sliding:
            window = self.sliding[layer]
            seen = window.attend(grouped, key[0], value[0], scale)
            window.append(key[0], value[0])
            return seen.reshape(1, -1, n, dim).transpose(1, 2)
        out = torch.empty_like(grouped)
        keys, values = self.context.cache.layer(layer)
        lses = []
        for head in range(heads):
            one = slice(head, head + 1)
            rows = grouped[one].contiguous()
            parts = [grouped_attention(rows, key[0, one], value[0, one], scale, causal=True)]
            if self.past:
                parts.append(grouped_attention(rows, keys[one, : self.past], values[one, : self.past], scale))
            merged, lse = merge_parts(parts)
            out[head] = merged.view_as(rows[0])
            lses.append(lse.view(-1, n))
        self.watch(layer, grouped, keys[:, : self.past], key[0], torch.stack(lses), scale)
        return out.reshape(1, -1, n, dim).transpose(1, 2)


@dataclass(frozen=True)
class WindowAttention(ReplayPass):
    """Writes the summed attention of the last `window` replayed tokens into `scores [N,past - prefix]`."""

    geometry: Geometry
    scores: Tensor
    window: int

    def watch(self, layer: int, query: Tensor, past: Tensor, own: Tensor, lse: Tensor, scale: float) -> None:
        rows, sums = query[:, :, -self.window :], lse[:, :, -self.window :]
        received = column_sum_heads(rows, past[:, self.context.prefix :], sums, scale)
        self.scores[self.geometry.rows(layer)] = received


@dataclass(frozen=True)
class ReceivedAttention(ReplayPass):
    """Adds the attention that a block of queries pays to `scores [N,S]`."""

    geometry: Geometry
    scores: Tensor

    def watch(self, layer: int, query: Tensor, past: Tensor, own: Tensor, lse: Tensor, scale: float) -> None:
        scores = self.scores[self.geometry.rows(layer)]
        prefix = self.context.prefix
        if self.past > prefix:
            scores[:, : self.past - prefix] += column_sum_heads(query, past[:, prefix:], lse, scale).cpu()
        received = column_sum_heads(query, own, lse, scale, causal=True).cpu()
        skipped = max(0, prefix - self.past)  # the block's tokens that belong to the prefix
        start = self.past + skipped - prefix
        scores[:, start : start + max(0, received.shape[1] - skipped)] += received[:, skipped:]


def no_past(model: LanguageModel) -> dict[int, SlidingLayer]:
    """The sliding layers before the first token."""
    layers = {}
    for index, shape in enumerate(model.geometry.shapes):
        if shape.window is not None:
            none = torch.empty(shape.kv_heads, 0, shape.head_dim, dtype=model.dtype, device=model.device)
            layers[index] = SlidingLayer(none, none, shape.window)
    return layers
