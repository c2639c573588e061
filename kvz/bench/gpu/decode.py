"""Decoding end to end: milliseconds a step of a whole model, from a full cache and from an archive, each in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kvz.bench.gpu.full import FullStep
from kvz.bench.gpu.models import ModelGeometry, RandomModel, random_archive, random_model
from kvz.bench.gpu.timing import median_ms
from kvz.cache.ragged import RaggedCache
from kvz.config import Decoding, Sampling
from kvz.decode.decoding import reading_of
from kvz.decode.step.graph import StepGraph
from kvz.decode.step.reader import StepReader, StepRoom
from kvz.decode.step.state import StepState

__all__ = ["decode_rows", "graph_of"]

_PREFIX = 30
_CAPACITY = 512
_QUESTION = 64  # tokens of a tail when steps are timed


@dataclass(frozen=True)
class _Case:
    """One way to decode: a reader for a room, and the bytes of pairs and index that a step reads."""

    name: str
    batch: int
    reader: Callable[[StepRoom], StepReader]
    pair_bytes: float


def decode_rows(
    geometry: ModelGeometry, lengths: list[int], questions: int, dtype: torch.dtype, device: torch.device
) -> Iterator[dict[str, Any]]:
    """A row for each length and way as it is measured.

    `times_full` is how many times the tokens a second of the GQA-aware full cache, which has one question, `times_one`
    how many times those of the same way with one question.
    """
    model = random_model(geometry, dtype, device)
    weights = model.decoder.weights.nbytes
    for tokens in lengths:
        archive = random_archive(geometry, tokens, 0.3, _PREFIX, dtype, device)
        full: float | None = None
        alone: dict[str, float] = {}
        for case in _cases(geometry, archive, tokens, questions, dtype, device):
            row: dict[str, Any] = {"model": geometry.name, "tokens": tokens, "way": case.name, "batch": case.batch}
            try:
                row |= _measured(model, geometry, archive, case, weights)
            except torch.OutOfMemoryError as error:
                row["error"] = str(error).splitlines()[0]
            if "ms" in row:
                full = full or row["ms"]
                row["times_full"] = full * case.batch / row["ms"]
                row["times_one"] = alone.setdefault(case.name, row["ms"]) * case.batch / row["ms"]
            yield row


def _cases(
    geometry: ModelGeometry, archive: RaggedCache, tokens: int, questions: int, dtype: torch.dtype, device: torch.device
) -> Iterator[_Case]:
    pair = geometry.pair_bytes(dtype)
    whole = geometry.layers * geometry.kv_heads * tokens * pair
    for name, repeat in (("full KV, GQA-aware", False), ("full KV, repeat-KV", True)):
        yield _Case(name, 1, lambda room, r=repeat: FullStep(geometry, room.batch, tokens, dtype, device, r), whole)  # type: ignore[misc]
    dense = reading_of(Decoding("dense"), archive, _PREFIX)
    assert dense.steps is not None
    for batch in (1, questions):
        yield _Case("r = 0.3, dense", batch, dense.steps, archive.pairs * pair)
    for policy, budget in (("hsa", 256), ("hsa", 1024), ("lowbit", 256), ("lowbit", 1024)):
        reading = reading_of(Decoding(policy, budget), archive, _PREFIX)
        if reading.steps is not None and reading.policy == policy:
            read = reading.read().nbytes
            for batch in (1, questions) if policy == "lowbit" else (1,):
                yield _Case(f"r = 0.3, {policy}@{budget}", batch, reading.steps, batch * read)


def graph_of(
    model: RandomModel,
    geometry: ModelGeometry,
    archive: RaggedCache,
    batch: int,
    reader: Callable[[StepRoom], StepReader],
) -> StepGraph:
    """Steps of `batch` questions over an archive, as they are after a question of some tokens."""
    state = StepState.make(geometry.shapes, batch, _CAPACITY, model.dtype, model.device)
    room = StepRoom(batch, geometry.group, _CAPACITY, model.dtype)
    graph = StepGraph(model, archive, reader(room), state, Sampling())
    state.begin([1] * batch, [_QUESTION] * batch, archive.logical_length, [0] * batch, [1] * batch)
    return graph


def _measured(
    model: RandomModel, geometry: ModelGeometry, archive: RaggedCache, case: _Case, weights: int
) -> dict[str, Any]:
    graph = graph_of(model, geometry, archive, case.batch, case.reader)
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    graph.step()
    elapsed = median_ms(graph.step, model.device)
    row = {"ms": elapsed, "step_bytes": weights + case.pair_bytes, "no_synchronisation": _unasked(graph)}
    if model.device.type == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
    return row


def _unasked(graph: StepGraph) -> bool | None:
    """Whether an eager step runs where any synchronisation with the host is an error; None without a GPU."""
    if graph.state.ids.device.type != "cuda":
        return None
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph.run_eagerly()
    except RuntimeError:
        return False
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True
