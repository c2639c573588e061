"""KVzip (arXiv 2505.23416): a pair matters as much as the model looks at it while repeating the context.

The context is repeated chunk by chunk. Each chunk's forward pass attends the full cache; the score of a pair of the
chunk is the largest weight that any query of the group, on any row of the repeat input, gives it in a softmax over
[prefix | the chunk | the repeat input's own keys, causal].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.full import FullCache
from kvz.errors import UsageError
from kvz.kernels.attention import grouped_attention
from kvz.kernels.kvzip_score import column_max
from kvz.kernels.merge import merge_parts
from kvz.models.language_model import LanguageModel
from kvz.prompt import repeat_ids
from kvz.scoring.method import Context

__all__ = ["KVzip"]


@dataclass(frozen=True)
class KVzip:
    """The paper's method; `chunk` is its m, in tokens."""

    chunk: int = 2048

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise UsageError(f"chunk of {self.chunk} tokens: give 1 or more")

    @property
    def name(self) -> str:
        return "kvzip"

    def parameters(self) -> dict[str, int | float | str]:
        return {"chunk": self.chunk}

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[L,H,S]` float32, on the CPU. One pass over the context, in forward passes of `chunk` tokens."""
        layers, heads, length = model.geometry.layers, model.geometry.kv_heads[0], len(context.ids)
        scores = torch.empty(layers, heads, length, dtype=torch.float32)
        after = context.prefix + length
        for start in range(0, length, self.chunk):
            end = min(start + self.chunk, length)
            repeat = repeat_ids(model.tokenizer, context.frame.seam, context.ids, start, end)
            chunk = _RepeatPass(context.cache, context.prefix, start, end, scores)
            model.fill(torch.tensor(repeat), after, chunk)
            done(end - start)
        return scores


@dataclass(frozen=True)
class _RepeatPass:
    """Attends the full cache and the repeat input, and writes the scores of context[start:end] on the way.

    The keys are visited in segments, so that the log-sum-exp over the score's own softmax falls out of the attention:
    nothing is computed twice but the chunk's columns. One KV head at a time keeps the extra memory small.
    """

    cache: FullCache
    prefix: int
    start: int
    end: int
    scores: Tensor

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        out = torch.empty_like(grouped)
        keys, values = self.cache.layer(layer)
        for head in range(heads):
            one = slice(head, head + 1)
            rows = grouped[one].contiguous()
            own = grouped_attention(rows, key[0, one], value[0, one], scale, causal=True)
            scored = [own, *self._over(rows, keys[one], values[one], scale, self._scored_segments)]
            merged = merge_parts(scored)
            others = self._over(rows, keys[one], values[one], scale, self._other_segments)
            out[head] = merge_parts([merged, *others])[0].view_as(rows[0])
            columns = keys[head, self.prefix + self.start : self.prefix + self.end]
            best = column_max(rows.view(-1, dim), columns, merged[1].view(-1), scale)
            self.scores[layer, head, self.start : self.end] = best
        return out.reshape(1, -1, n, dim).transpose(1, 2)

    @property
    def _scored_segments(self) -> list[slice]:
        """Cached keys inside the score's softmax: the prefix and the chunk, as one segment where they touch."""
        first, last = self.prefix + self.start, self.prefix + self.end
        return [slice(0, last)] if self.start == 0 else [slice(0, self.prefix), slice(first, last)]

    @property
    def _other_segments(self) -> list[slice]:
        """Cached keys that are attended but stand outside the score's softmax."""
        before = slice(self.prefix, self.prefix + self.start)
        return [before, slice(self.prefix + self.end, self.cache.length)]

    @staticmethod
    def _over(
        rows: Tensor, keys: Tensor, values: Tensor, scale: float, segments: list[slice]
    ) -> list[tuple[Tensor, Tensor]]:
        return [
            grouped_attention(rows, keys[:, part], values[:, part], scale)
            for part in segments
            if part.stop > part.start
        ]
