"""Steps whose layers go through torch's compiler beside steps as they are, of the same model over the same archive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kvz.bench.gpu.decode import graph_of
from kvz.bench.gpu.models import ModelGeometry, RandomModel, random_archive, random_model
from kvz.bench.gpu.timing import median_ms
from kvz.cache.ragged import RaggedCache
from kvz.decode.decoding import Decoding, Reading
from kvz.models.compiled_layers import compile_layers

__all__ = ["compiled_rows"]

_PREFIX = 30
_ROUNDING = 0.1  # of the largest logit: above it, something else is computed


def compiled_rows(
    geometry: ModelGeometry, tokens: int, dtype: torch.dtype, device: torch.device
) -> Iterator[dict[str, Any]]:
    """A row for steps as they are, and one for compiled ones: milliseconds, seconds to the first, and their logits.

    The steps are those of one question that reads 256 pairs a head by `lowbit`. `error` is the largest difference of
    a logit from the plain step's, over the largest logit; `passed` whether that is rounding.
    """
    model = random_model(geometry, dtype, device)
    archive = random_archive(geometry, tokens, 0.3, _PREFIX, dtype, device)
    reading = Decoding("lowbit", 256).reading(archive, _PREFIX)
    row, plain = _measured(model, geometry, archive, reading)
    yield {"steps": "plain", **row}
    compile_layers(model.network)
    row, compiled = _measured(model, geometry, archive, reading)
    error = float((compiled - plain).abs().max() / plain.abs().max())
    yield {"steps": "compiled", **row, "error": error, "passed": error <= _ROUNDING}


def _measured(
    model: RandomModel, geometry: ModelGeometry, archive: RaggedCache, reading: Reading
) -> tuple[dict[str, Any], Tensor]:
    assert reading.steps is not None
    began = time.perf_counter()
    graph = graph_of(model, geometry, archive, 1, reading.steps)
    for tail in (*graph.state.keys, *graph.state.values):
        tail.zero_()  # what warm-ups chose and wrote there may differ by more than rounding
    logits = graph.logits().cpu()
    ready = time.perf_counter() - began
    return {"ms": median_ms(graph.step, model.device), "seconds_to_first": ready}, logits
