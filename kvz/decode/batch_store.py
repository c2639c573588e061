"""What a step of a batch attends: one token each of several questions, over one archive and a tail of its own each."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.slots import TailSlots
from kvz.decode.beside import Beside, Part
from kvz.decode.policies.dense import ArchiveReader
from kvz.kernels.merge import merge_parts
from kvz.kernels.seen_attention import seen_attention
from kvz.kernels.tails import Tails

__all__ = ["BatchStore"]


class BatchStore:
    """A pair store for B questions: row b attends the archive by the reader `tokens`, and row b of the tails."""

    def __init__(self, cache: RaggedCache, tails: TailSlots, tokens: ArchiveReader) -> None:
        self._cache = cache
        self._tails = tails
        self._tokens = tokens

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of one new token a row: `query [B,Hq,1,D]`, `key, value [B,H,1,D]`, -> `[B,1,Hq,D]`."""
        batch, heads, _, dim = key.shape
        grouped = query.reshape(batch, heads, -1, dim)
        window = self._cache.layers[layer].window
        lengths = self._tails.lengths_on_device[:, None]
        keys, values = self._tails.write(layer, key, value)

        def own() -> Part:
            places = torch.arange(keys.shape[2], device=query.device)
            seen = places <= lengths
            if window is not None:
                seen &= places > lengths - window
            return _as_heads(seen_attention(grouped, keys, values, seen, scale))

        if window is None:
            # The rows are to a reader what tokens are: they do not see each other.
            beside = Beside(own, Tails(keys, values, tuple(length + 1 for length in self._tails.lengths)))
            out = self._tokens.attend(layer, grouped.permute(1, 2, 0, 3), scale, beside)
        else:
            out = merge_parts([own(), self._over_window(layer, grouped, lengths, scale)])[0]
        return out.to(query.dtype).view(heads, -1, batch, dim).permute(2, 0, 1, 3).reshape(batch, 1, -1, dim)

    def _over_window(self, layer: int, grouped: Tensor, lengths: Tensor, scale: float) -> Part:
        """Attention over what the window of each row, `lengths [B,1]` tokens on, still sees of the archive."""
        batch, heads, _, dim = grouped.shape
        stored = self._cache.layers[layer]
        assert stored.window is not None
        keys, values = (t.view(1, heads, -1, dim).expand(batch, -1, -1, -1) for t in (stored.keys, stored.values))
        back = keys.shape[2] - torch.arange(keys.shape[2], device=grouped.device)  # before the archive's end
        return _as_heads(seen_attention(grouped, keys, values, back + lengths < stored.window, scale))


def _as_heads(part: Part) -> Part:
    """`[B,H,G,D]`, `[B,H,G]` as a reader has them: `[H,G*B,D]`, `[H,G*B]`."""
    out, lse = part
    heads, dim = out.shape[1], out.shape[3]
    return out.permute(1, 2, 0, 3).reshape(heads, -1, dim), lse.permute(1, 2, 0).reshape(heads, -1)
