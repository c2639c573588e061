"""What a decode step attends: the archive as a reader has it, sliding windows, and the tails, all on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.decode.step.reader import StepReader
from kvz.decode.step.state import StepState
from kvz.kernels.decode_plan import TailPairs
from kvz.kernels.merge import merge_parts
from kvz.kernels.seen_attention import seen_attention

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
        grouped = query.reshape(query.shape[0], stored.heads, -1, query.shape[3])
        parts = [_over_archive(stored, grouped, tail.past, scale), _over_tail(stored.window, grouped, tail, scale)]
        return merge_parts(parts)[0].reshape(query.shape[0], 1, query.shape[1], -1)


def _over_archive(stored: RaggedLayer, query: Tensor, past: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What the window of new tokens, `past [B]` tokens after the archive, still sees of it: `query [B,H,G,D]`."""
    assert stored.window is not None
    batch, heads, _, dim = query.shape
    keys, values = (t.view(1, heads, -1, dim).expand(batch, -1, -1, -1) for t in (stored.keys, stored.values))
    back = keys.shape[2] - torch.arange(keys.shape[2], device=query.device)  # before the archive's end
    return seen_attention(query, keys, values, back + past[:, None] < stored.window, scale)


def _over_tail(window: int, query: Tensor, tail: TailPairs, scale: float) -> tuple[Tensor, Tensor]:
    """What it sees of the tail: of a long one only the places of the window are read."""
    keys, values = tail.keys, tail.values
    if keys.shape[2] > window:
        places = tail.past[:, None] - torch.arange(window, device=query.device)
        index = places.clamp_min(0).long()[:, None, :, None]
        keys, values = (torch.take_along_dim(t, index, 2) for t in (keys, values))
        return seen_attention(query, keys, values, places >= 0, scale)
    seen = torch.arange(keys.shape[2], device=query.device) <= tail.past[:, None]
    return seen_attention(query, keys, values, seen, scale)
