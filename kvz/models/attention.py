"""The one attention function and mask function that kvz registers with transformers.

A forward pass carries a `PairStore` as the keyword argument `pair_store`; transformers hands it through to the
attention function of every layer, which does nothing but ask it. No transformers cache object is involved, so neither
its name (`past_key_values`, later `cache`) nor its layout matters, and no model is patched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

__all__ = [
    "ATTENTION_NAME",
    "OPAQUE_ATTENTION_NAME",
    "PairStore",
    "Told",
    "WatchingStore",
    "register_attention",
    "register_opaque_attention",
]

ATTENTION_NAME = "kvz"
OPAQUE_ATTENTION_NAME = "kvz-opaque"


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


def register_attention() -> None:
    """Make `attn_implementation="kvz"` known to transformers; doing it again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, _attend)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)


def register_opaque_attention() -> None:
    """Make `attn_implementation="kvz-opaque"` known: the same, called by torch's compiler without a look into it."""
    AttentionInterface.register(OPAQUE_ATTENTION_NAME, torch.compiler.disable(_attend))
    AttentionMaskInterface.register(OPAQUE_ATTENTION_NAME, _no_mask)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    pair_store: PairStore,
    **_: Any,
) -> tuple[Tensor, None]:
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer = module.layer_idx
    assert isinstance(layer, int)
    return pair_store.attend(layer, query, key, value, scale), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The pair store knows what may be seen; a mask built by transformers would be of the wrong size."""
