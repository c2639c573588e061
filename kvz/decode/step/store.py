"""What a decode step attends: the archive as a reader has it, sliding windows, and the tails, all on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.decode.step.reader import StepReader
from kvz.decode.step.state import StepState
from kvz.kernels.attention import attention
from kvz.kernels.decode_plan import TailPairs

__all__ = ["StepStore"]


class StepStore:
    """A pair store for one new token of each of B questions; neither asks the device nor depends on its numbers."""

    def __init__(self, cache: RaggedCache, state: StepState, reader: StepReader) -> None:
        self._cache = cache
        self._state = state
        self._reader = reader

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of `query [B,Hq,1,D]`, `key, value [B,H,1,D]`, -> `[B,1,Hq,D]`."""
        tail = self._state.write(layer, key, value)
        stored = self._cache.layers[layer]
        if stored.window is None:
            return self._reader.attend(layer, query, scale, tail, self._state.seen)
        return self._over_window(stored, query, tail, scale)

    def _over_window(self, stored: RaggedLayer, query: Tensor, tail: TailPairs, scale: float) -> Tensor:
        """Attention over what the window still sees of archive and tail: one mask by the lengths on the device."""
        assert stored.window is not None
        batch, query_heads, _, dim = query.shape
        heads = stored.heads
        old = [t.view(1, heads, -1, dim).expand(batch, -1, -1, -1) for t in (stored.keys, stored.values)]
        keys, values = (torch.cat(pair, 2) for pair in zip(old, (tail.keys, tail.values), strict=True))
        count = old[0].shape[2]
        places = torch.arange(keys.shape[2], device=query.device) - count  # of the tail; before 0 is the archive
        newest = tail.past[:, None]
        seen = (places <= newest) & (places > newest - stored.window)
        bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill_(~seen, float("-inf"))
        grouped = query.reshape(batch, heads, -1, dim)
        out, _ = attention(grouped, keys, values, scale, bias=bias[:, None, None].expand(-1, heads, -1, -1))
        return out.reshape(batch, 1, query_heads, dim)
