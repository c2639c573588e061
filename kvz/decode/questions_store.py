"""What the tokens of several questions attend in one pass: the archive all together, and each question's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from kvz.decode.archive_store import ArchiveStore
from kvz.decode.beside import Beside, Part
from kvz.decode.policies.dense import ArchiveReader

__all__ = ["QuestionsStore"]


class QuestionsStore:
    """A pair store for questions laid end to end, `lengths[i]` tokens for `stores[i]`; `reader` reads the archive."""

    def __init__(self, stores: Sequence[ArchiveStore], lengths: Sequence[int], reader: ArchiveReader) -> None:
        self._stores = stores
        self._bounds = list(pairwise([0, *accumulate(lengths)]))
        self._reader = reader

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of all tokens: `query [1,Hq,N,D]`, `key, value [1,H,N,D]`, -> `[1,N,Hq,D]`."""
        heads, n, dim = key.shape[1:]
        parts = [(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b]) for a, b in self._bounds]
        if self._stores[0].slides(layer):
            outs = [store.attend(layer, q, k, v, scale) for store, (q, k, v) in zip(self._stores, parts, strict=True)]
            return torch.cat(outs, 1)
        own = [
            store.over_tail(layer, q.reshape(heads, -1, q.shape[2], dim), k, v, scale)
            for store, (q, k, v) in zip(self._stores, parts, strict=True)
        ]
        grouped = query.reshape(heads, -1, n, dim)
        out = self._reader.attend(layer, grouped, scale, Beside(lambda: _end_to_end(own, grouped.shape[1])))
        return out.to(query.dtype).view(1, -1, n, dim).transpose(1, 2)


def _end_to_end(parts: Sequence[Part], group: int) -> Part:
    """Parts of several questions, `[H,G*n,D]` and `[H,G*n]` each, as one of all their tokens."""
    heads, _, dim = parts[0][0].shape
    out = torch.cat([part[0].view(heads, group, -1, dim) for part in parts], 2)
    lse = torch.cat([part[1].view(heads, group, -1) for part in parts], 2)
    return out.reshape(heads, -1, dim), lse.reshape(heads, -1)
