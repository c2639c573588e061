"""Prefill: a prompt through the model into a full cache, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvz.cache.full import FullCache
from kvz.models.language_model import LanguageModel

__all__ = ["PREFILL_CHUNK", "prefill"]

PREFILL_CHUNK = 2048  # tokens; bounds the activations, and larger ones were no faster


def prefill(
    model: LanguageModel,
    ids: Sequence[int],
    chunk: int = PREFILL_CHUNK,
    done: Callable[[int], None] = lambda tokens: None,
) -> FullCache:
    """The full cache of `ids`, computed `chunk` tokens at a time; `done` is told how many tokens each took."""
    cache = FullCache(model.geometry.shapes, len(ids), model.dtype, model.device)
    tokens = torch.tensor(ids, dtype=torch.int64)
    for start in range(0, len(ids), chunk):
        part = tokens[start : start + chunk]
        model.fill(part, start, cache)
        cache.advance(len(part))
        done(len(part))
    return cache
