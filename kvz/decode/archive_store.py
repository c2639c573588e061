"""What a question's forward passes attend: an archive, which is only read, and a tail that grows."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.decode.beside import Beside, Part
from kvz.decode.policies.dense import ArchiveReader
from kvz.decode.policies.traffic import Traffic
from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts
from kvz.kernels.sliding_attention import sliding_attention
from kvz.kernels.tails import Tails

__all__ = ["ArchiveStore", "read_of"]


class ArchiveStore:
    """A pair store over archive and tail, merged by log-sum-exp.

    The tokens of a question, several in a pass, read the archive by `question`; a token alone is one of an answer, and
    reads it by `tokens`.
    """

    def __init__(self, cache: RaggedCache, tail: Tail, question: ArchiveReader, tokens: ArchiveReader) -> None:
        self._cache = cache
        self._tail = tail
        self._question = question
        self._tokens = tokens

    @property
    def pairs_read(self) -> float:
        """Pairs that a token of the answer reads, over all layers and heads, as budgets count them."""
        return read_of(self._cache, self._tokens).pairs

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of n new tokens over archive and tail: `query [1,Hq,n,D]`, `key, value [1,H,n,D]`."""
        heads, n, dim = key.shape[1:]
        grouped = query.reshape(heads, -1, n, dim)
        if self._cache.layers[layer].window is not None:
            return self._over_window(layer, grouped, key, value, scale)
        if n == 1:
            out = self._tokens.attend(layer, grouped, scale, self._beside_token(layer, grouped, key, value, scale))
        else:
            own = self.over_tail(layer, grouped, key, value, scale)
            out = self._question.attend(layer, grouped, scale, Beside(lambda: own))
        return out.to(query.dtype).view(1, -1, n, dim).transpose(1, 2)

    def slides(self, layer: int) -> bool:
        """Whether a layer sees a window only."""
        return self._cache.layers[layer].window is not None

    def _beside_token(self, layer: int, grouped: Tensor, key: Tensor, value: Tensor, scale: float) -> Beside:
        keys, values = self._tail.write(layer, key, value)
        return Beside(
            lambda: grouped_attention(grouped, keys[0], values[0], scale), Tails(keys, values, (keys.shape[2],))
        )

    def _over_window(self, layer: int, grouped: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of a sliding layer: over what its window still sees of the archive and of the tail."""
        heads, group, n, dim = grouped.shape
        stored = self._cache.layers[layer]
        window = stored.window
        assert window is not None
        past = self._tail.length
        keys, values = (t[0] for t in self._tail.write(layer, key, value))
        old_keys, old_values = (t.view(heads, len(t) // heads, dim) for t in (stored.keys, stored.values))
        first = max(0, old_keys.shape[1] - max(0, window - 1 - past))
        begin = max(0, past - (window - 1))
        old = old_keys[:, first:], old_values[:, first:]
        new = keys[:, begin:], values[:, begin:]
        if n == 1:
            parts = [grouped_attention(grouped, k, v, scale) for k, v in (old, new) if k.shape[1]]
            out = merge_parts(parts)[0]
        else:
            joined = [torch.cat(pair, 1) for pair in zip(old, new, strict=True)]
            out = sliding_attention(grouped, joined[0], joined[1], scale, window)
        return out.reshape(1, heads * group, n, dim).transpose(1, 2)

    def over_tail(self, layer: int, grouped: Tensor, key: Tensor, value: Tensor, scale: float) -> Part:
        """Attention over the tail's past and the new tokens themselves, causal."""
        past = self._tail.length
        keys, values = self._tail.write(layer, key, value)
        own = grouped_attention(grouped, keys[0, :, past:], values[0, :, past:], scale, causal=True)
        if not past:
            return own
        return merge_parts([own, grouped_attention(grouped, keys[0, :, :past], values[0, :, :past], scale)])


def read_of(cache: RaggedCache, reader: ArchiveReader) -> Traffic:
    """What a token reads of a whole archive."""
    return Traffic.total(reader.read(layer) for layer in range(len(cache.layers)))
