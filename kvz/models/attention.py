"""What a forward pass attends: a pair store, which is asked once a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from kvz.models.decoder import Attend, Decoder

__all__ = ["PairStore", "Told", "WatchingStore", "attend_in", "step_logits"]


class PairStore(Protocol):
    """What a forward pass attends to: the full cache of a prefill, a scoring chunk, or an archive with its tail."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of new tokens, `query [B,Hq,n,D]`, `key, value [B,H,n,D]`, -> `[B,n,Hq,D]`.

        The store sees to causality and to what lies before the new tokens.
        """
        ...


class WatchingStore(PairStore, Protocol):
    """A pair store that is shown the input of each layer before the layer attends."""

    def see(self, layer: int, hidden: Tensor) -> None:
        """The hidden states that enter a layer, before its norm: `[B,n,hidden]`."""
        ...


class Told:
    """A pair store that tells `done`, after each layer, how many of a pass's `tokens` that makes in proportion."""

    def __init__(self, store: PairStore, done: Callable[[int], None], tokens: int, layers: int) -> None:
        self._store = store
        self._done = done
        self._tokens = tokens
        self._layers = layers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """What the store attends."""
        out = self._store.attend(layer, query, key, value, scale)
        self._done(self._tokens * (layer + 1) // self._layers - self._tokens * layer // self._layers)
        return out

    def see(self, layer: int, hidden: Tensor) -> None:
        """Shown to a store that watches."""
        self._store.see(layer, hidden)  # type: ignore[attr-defined]


def attend_in(store: PairStore, scale: float, dtype: torch.dtype, batch: int) -> Attend:
    """How the tokens of `batch` sequences, as many of each, attend a store that holds pairs of `dtype`."""

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (t.to(dtype).unflatten(0, (batch, -1)).transpose(1, 2) for t in (query, key, value))
        return store.attend(layer, query, key, value, scale).flatten(0, 1)

    return attend


def step_logits(decoder: Decoder, dtype: torch.dtype, ids: Tensor, positions: Tensor, store: PairStore) -> Tensor:
    """Logits after one token each of B sequences, `ids, positions [B]`: `[B,vocabulary]` float32."""
    attend = attend_in(store, decoder.architecture.scale, dtype, ids.shape[0])
    return decoder.logits(decoder.forward(ids, positions, attend))
