"""Prefill: a prompt through the model into a full cache, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvz.cache.full import FullCache
from kvz.models.attention import Told
from kvz.models.language_model import LanguageModel

__all__ = ["PREFILL_CHUNK", "prefill"]

PREFILL_CHUNK = 2048  # tokens; bounds the activations, and larger ones were no faster


def prefill(
    model: LanguageModel,
    ids: Sequence[int],
    chunk: int = PREFILL_CHUNK,
    done: Callable[[int], None] = lambda tokens: None,
    offload: bool = False,
    slack: int = 0,
) -> FullCache:
    """The full cache of `ids`, computed `chunk` tokens at a time; `done` is told of tokens as layers see them.

    `offload` and `slack` as in `FullCache`.
    """
    cache = FullCache(model.geometry.shapes, len(ids), model.dtype, model.device, offload, slack)
    tokens = torch.tensor(ids, dtype=torch.int64)
    for start in range(0, len(ids), chunk):
        part = tokens[start : start + chunk]
        model.fill(part, start, Told(cache, done, len(part), model.geometry.layers))
        cache.advance(len(part))
    return cache
