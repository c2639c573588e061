"""A context that is prefilled once, and from whose full cache archives are cut again and again."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache, survivors
from kvz.models.language_model import LanguageModel
from kvz.models.prefill import prefill
from kvz.prompt import context_ids, make_frame
from kvz.scoring.method import Context

__all__ = ["everything", "prefill_context", "pruned"]

_MOST_REPLAYED = 512  # tokens: more than any method's window


def prefill_context(model: LanguageModel, text: str) -> tuple[Context, float]:
    """A text as a context of the model's own frame, with its full cache, and the seconds of prefilling it."""
    frame = make_frame(model.tokenizer, model.end_ids)
    ids = context_ids(model.tokenizer, frame, text)
    began = time.perf_counter()
    full = prefill(model, [*frame.prefix_ids, *ids], slack=_MOST_REPLAYED)
    seconds = time.perf_counter() - began
    return Context(frame, tuple(ids), full), seconds


def pruned(model: LanguageModel, context: Context, kept: Tensor) -> RaggedCache:
    """What `evict` makes for `kept [N,S]` bool, but the full cache stays: it is evicted from again and again."""
    full, geometry = context.cache, model.geometry
    layers = (survivors(full, index, kept[geometry.rows(index)], context.prefix) for index in range(full.layers))
    return RaggedCache(tuple(layers), full.length)


def everything(model: LanguageModel, context: Context) -> RaggedCache:
    """The full cache as an archive has it."""
    return pruned(model, context, torch.ones(model.geometry.rows_total, len(context.ids), dtype=torch.bool))
