"""A baseline for speed: keys and values are expanded to one copy a query head before a step attends them.

It is what attention code without grouped-query kernels does, and reads G times the bytes; the answers are the same.
"""

from __future__ import annotations

from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.decode.beside import Beside
from kvz.decode.decoding import Reading
from kvz.decode.policies.dense import DenseReader
from kvz.decode.policies.traffic import Traffic, whole
from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts

__all__ = ["RepeatKV", "repeat_kv_reading"]


class RepeatKV:
    """Reads a full archive, in which all heads of a layer have the same number of pairs."""

    def __init__(self, cache: RaggedCache) -> None:
        self._cache = cache

    def attend(self, layer: int, query: Tensor, scale: float, beside: Beside) -> Tensor:
        """Attention of `query [H,G,n,D]` over expanded keys and values, `[H,G*n,D]`."""
        heads, group, n, dim = query.shape
        stored = self._cache.layers[layer]
        keys, values = (t.view(heads, -1, dim).repeat_interleave(group, 0) for t in (stored.keys, stored.values))
        out, lse = grouped_attention(query.reshape(heads * group, 1, n, dim), keys, values, scale)
        part = out.reshape(heads, group * n, dim), lse.reshape(heads, group * n)
        return merge_parts([part, beside.part()])[0]

    def read(self, layer: int) -> Traffic:
        """All of it, once: the copies are counted where the group is known."""
        return whole(self._cache.layers[layer])

    @property
    def held_nbytes(self) -> int:
        """None that outlives a step."""
        return 0


def repeat_kv_reading(cache: RaggedCache) -> Reading:
    """The tokens of answers expand the cache; those of questions read it as it is."""
    dense, expanding = DenseReader(cache), RepeatKV(cache)
    return Reading("repeat-kv", cache, lambda: (dense, expanding))
