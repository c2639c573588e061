"""Time per token against the length of the context: transformers' full cache, an archive read densely and sparsely.

Run by `scripts/bench decode --lengths 2048,4096,7900`. All sides take turns, one token each. Bytes a step are the
weights and what is read of the cache; the floor is their time at the bandwidth that memory is read with.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from kvz.archive import seam_of
from kvz.bench.archive_side import ArchiveSide
from kvz.bench.documents import text_of
from kvz.bench.file_names import shown
from kvz.bench.machine import describe_machine, read_bandwidth
from kvz.cli.console import note
from kvz.compression import compress_document
from kvz.config import Decoding
from kvz.documents import document_from_text
from kvz.models.baseline import TransformersBaseline
from kvz.models.language_model import LanguageModel, load_model
from kvz.progress import Progress
from kvz.prompt import question_ids
from kvz.recipe import make_recipe

__all__ = ["measure_lengths", "report_lengths"]

_QUESTION = "What is the agreement number?"
_FULL, _DENSE = "full (transformers)", "dense"
_METHOD = "kvzip"  # the default method's archives are of the same size, and take longer to make


class Side(Protocol):
    """Something that takes tokens and gives logits."""

    def feed(self, ids: Sequence[int]) -> Tensor:
        """Append tokens; logits after the last one."""
        ...


def measure_lengths(
    model_name: str | None, dtype: str, lengths: Sequence[int], ratio: float, budgets: Sequence[str], new: int
) -> dict[str, Any]:
    """All numbers of one run; `budgets` are policies with their budgets, such as hsa@256."""
    model = load_model(model_name, "cpu", dtype, note)
    bandwidth = read_bandwidth()
    rows = [_measure(model, length, ratio, budgets, new, bandwidth) for length in lengths]
    return {
        "machine": describe_machine(),
        "model": shown(model.source.id),
        "dtype": model.dtype_name,
        "ratio": ratio,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "rows": rows,
    }


def report_lengths(result: dict[str, Any]) -> list[str]:
    """A table: a row for each length and side, with the ratio to the full cache's time."""
    lines = [
        result["machine"],
        f"{result['model']}, {result['dtype']}, r = {result['ratio']:g}; "
        f"memory is read at {result['read_bandwidth_gb_s']:.1f} GB/s",
        "",
        f"{'tokens':>7}  {'':<20}{'ms a token':>11}{'ratio':>7}{'MB a step':>11}{'floor, ms':>11}",
    ]
    for row in result["rows"]:
        full = row["sides"][_FULL]["ms"]
        for name, side in row["sides"].items():
            lines.append(
                f"{row['tokens']:>7}  {name:<20}{side['ms']:>11.1f}{side['ms'] / full:>7.2f}"
                f"{side['bytes'] / 1e6:>11.1f}{side['floor_ms']:>11.1f}"
            )
    return lines


def _measure(
    model: LanguageModel, length: int, ratio: float, budgets: Sequence[str], new: int, bandwidth: float
) -> dict[str, Any]:
    document = document_from_text(text_of(model, length), "examples")
    archive = compress_document(document, model, make_recipe(ratio=ratio, method=_METHOD), Progress())
    assert archive.token_ids is not None
    baseline = TransformersBaseline(model.source.folder, model.dtype, model.device)
    baseline.feed(archive.token_ids.tolist())
    question = question_ids(model.tokenizer, seam_of(archive.manifest), _QUESTION)
    capacity = len(question) + new + 1
    weights = sum(p.numel() * p.element_size() for p in baseline.network.parameters())
    sides: dict[str, Side] = {_FULL: baseline}
    read = {_FULL: weights + baseline.kv_bytes}
    for name in (_DENSE, *budgets):
        policy, _, budget = name.partition("@")
        side = ArchiveSide(model, archive, Decoding(policy, int(budget) if budget else None), capacity)
        sides[name] = side
        read[name] = weights + int(side.reading.read().nbytes)
    seconds = _take_turns(sides, question, new)
    note(f"{length} tokens measured")
    return {
        "tokens": archive.manifest.prompt.context_tokens,
        "sides": {
            name: {
                "ms": 1e3 * statistics.median(times),
                "bytes": read[name],
                "floor_ms": 1e3 * read[name] / bandwidth,
            }
            for name, times in seconds.items()
        },
    }


def _take_turns(sides: dict[str, Side], question: list[int], new: int) -> dict[str, list[float]]:
    """Seconds of each token on each side; all are fed what the first one says."""
    logits = {name: side.feed(question) for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    token = int(next(iter(logits.values())).argmax())
    for _ in range(new):
        following = token
        for name, side in sides.items():
            began = time.perf_counter()
            out = side.feed([token])
            seconds[name].append(time.perf_counter() - began)
            following = int(out.argmax()) if name == _FULL else following
        token = following
    return seconds
