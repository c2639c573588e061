"""Time per token from an r = 0.3 archive against transformers with its full cache, in one process, token by token.

Run by `scripts/bench decode`. The two sides take turns, one token each, so that a machine whose speed drifts is fair
to both. Times are medians over tokens; ratios are kvz / transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvz.archive import Archive, load, seam_of
from kvz.bench.archive_side import ArchiveSide
from kvz.bench.decode_lengths import measure_lengths, report_lengths
from kvz.bench.documents import text_of
from kvz.bench.file_names import shown
from kvz.bench.machine import describe_machine, read_bandwidth
from kvz.cli.console import emit, note
from kvz.compression import compress_document
from kvz.config import DENSE, Decoding
from kvz.documents import document_from_text
from kvz.models.baseline import TransformersBaseline
from kvz.models.language_model import LanguageModel, load_model
from kvz.progress import Progress
from kvz.prompt import question_ids
from kvz.recipe import make_recipe

__all__ = ["main"]

_QUESTION = "What is the agreement number?"


@dataclass
class Samples:
    """Seconds of each decoded token, in all and in attention."""

    token: list[float]
    attention: list[float]

    @property
    def token_ms(self) -> float:
        """Median milliseconds of a token."""
        return 1e3 * statistics.median(self.token)

    @property
    def attention_ms(self) -> float:
        """Median milliseconds of a token's attention."""
        return 1e3 * statistics.median(self.attention)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; `--json FILE` writes the numbers as well."""
    parser = argparse.ArgumentParser(prog="scripts/bench decode", description=__doc__)
    parser.add_argument("--tokens", type=int, default=6500, help="context length (default 6500)")
    parser.add_argument("--ratio", type=float, default=0.3, help="share of pairs kept (default 0.3)")
    parser.add_argument("--new", type=int, default=48, help="tokens decoded on each side (default 48)")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32")
    parser.add_argument("--model", default=None, help="as kvz -m; default the embedded model")
    parser.add_argument("--json", type=Path, default=None, help="also write the numbers to this file")
    parser.add_argument("--lengths", default=None, help="measure at each of these lengths instead, such as 2048,7900")
    parser.add_argument("--policies", default="hsa@256,lowbit@256", help="with --lengths (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.lengths:
        lengths, policies = [int(n) for n in options.lengths.split(",")], options.policies.split(",")
        result = measure_lengths(options.model, options.dtype, lengths, options.ratio, policies, options.new)
        lines = report_lengths(result)
    else:
        result = measure(options.model, options.dtype, options.tokens, options.ratio, options.new)
        lines = report(result)
    for line in lines:
        emit(line)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(model_name: str | None, dtype: str, tokens: int, ratio: float, new: int) -> dict[str, Any]:
    """All numbers of one run."""
    model = load_model(model_name, "cpu", dtype, note)
    bandwidth = read_bandwidth()
    baseline = TransformersBaseline(model.source.folder, model.dtype, model.device)
    _warm_up(model, baseline)
    archive, write_seconds = _compress(model, tokens, ratio)
    assert archive.token_ids is not None
    began = time.perf_counter()
    baseline.feed(archive.token_ids.tolist())
    baseline_prefill = time.perf_counter() - began
    question = question_ids(model.tokenizer, seam_of(archive.manifest), _QUESTION)
    ours = ArchiveSide(model, archive, Decoding(DENSE), len(question) + new + 1)
    full_bytes = baseline.kv_bytes
    update_before = baseline.update_seconds
    kvz_samples, full_samples = _take_turns(ours, baseline, question, new)
    weights = sum(p.numel() * p.element_size() for p in baseline.network.parameters())
    return {
        "machine": describe_machine(),
        "model": shown(model.source.id),
        "dtype": str(model.dtype).removeprefix("torch."),
        "context_tokens": archive.manifest.prompt.context_tokens,
        "ratio": ratio,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "weight_bytes": weights,
        "kv_bytes": {"kvz": ours.kv_bytes, "transformers": full_bytes},
        "token_ms": {"kvz": kvz_samples.token_ms, "transformers": full_samples.token_ms},
        "attention_ms": {"kvz": kvz_samples.attention_ms, "transformers": full_samples.attention_ms},
        "cache_update_ms": {"transformers": 1e3 * (baseline.update_seconds - update_before) / (new + 1)},
        "floor_ms": {
            "kvz": 1e3 * (weights + ours.kv_bytes) / bandwidth,
            "transformers": 1e3 * (weights + full_bytes) / bandwidth,
        },
        "prefill_seconds": {"kvz": archive.seconds["prefill"], "transformers": baseline_prefill},
        "compress_seconds": {**archive.seconds, "write": write_seconds},
    }


def report(result: dict[str, Any]) -> list[str]:
    """The numbers as lines to read, each target beside its measurement."""
    token, attention, kv = result["token_ms"], result["attention_ms"], result["kv_bytes"]
    floor, phases = result["floor_ms"], result["compress_seconds"]
    prefill = phases["prefill"]
    whole = sum(phases.values())
    rest = ", ".join(f"{name} {value:.2f} s" for name, value in phases.items())
    return [
        f"{result['machine']}",
        f"{result['model']}, {result['dtype']}, {result['context_tokens']} tokens of context, "
        f"r = {result['ratio']:g}; memory is read at {result['read_bandwidth_gb_s']:.1f} GB/s",
        "",
        f"{'':<22}{'kvz':>12}{'transformers':>14}{'ratio':>8}   target",
        _row("time per token, ms", token, "0.72 (aim 0.6)"),
        _row("  attention alone, ms", attention, "0.35"),
        _row("  floor by bytes, ms", floor, ""),
        _row("resident KV, MB", {side: n / 1e6 for side, n in kv.items()}, "0.33"),
        _row("prefill, s", result["prefill_seconds"], ""),
        f"  (appending to its cache takes transformers {result['cache_update_ms']['transformers']:.1f} ms a token)",
        "",
        f"compress: {rest}",
        f"  scoring / prefill {phases.get('score', 0.0) / prefill:.2f}   target 2.8",
        f"  whole / prefill   {whole / prefill:.2f}   target 4",
    ]


def _row(name: str, values: dict[str, float], target: str) -> str:
    ours, theirs = values["kvz"], values["transformers"]
    return f"{name:<22}{ours:>12.1f}{theirs:>14.1f}{ours / theirs:>8.2f}   {target}".rstrip()


def _warm_up(model: LanguageModel, baseline: TransformersBaseline) -> None:
    """One short pass on each side, so that neither is charged for first-call work."""
    compress_document(document_from_text("A few words to begin with."), model, make_recipe(ratio=0.5), Progress())
    with torch.inference_mode():
        baseline.network(torch.tensor([[1, 2, 3]]), use_cache=False)


def _compress(model: LanguageModel, tokens: int, ratio: float) -> tuple[Archive, float]:
    """An archive of the examples cut to `tokens`, written to disk and loaded again, and the seconds to write."""
    document = document_from_text(text_of(model, tokens), "examples")
    archive = compress_document(document, model, make_recipe(ratio=ratio), Progress())
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        archive.save(Path(folder) / "bench.kvz")
        write_seconds = time.perf_counter() - began
        loaded = load(Path(folder) / "bench.kvz")
    loaded.seconds.update(archive.seconds)
    return loaded, write_seconds


def _take_turns(
    ours: ArchiveSide, baseline: TransformersBaseline, question: list[int], new: int
) -> tuple[Samples, Samples]:
    """Feed both sides the question and then the same `new` tokens, in turns."""
    token = int(baseline.feed(question).argmax())
    ours.feed(question)
    kvz_samples, full_samples = Samples([], []), Samples([], [])
    for _ in range(new):
        _timed(ours.feed, token, lambda: ours.attention_seconds, kvz_samples)
        logits = _timed(baseline.feed, token, lambda: baseline.attention_seconds, full_samples)
        token = int(logits.argmax())
    return kvz_samples, full_samples


def _timed(
    feed: Callable[[Sequence[int]], Tensor], token: int, attention_clock: Callable[[], float], samples: Samples
) -> Tensor:
    before, began = attention_clock(), time.perf_counter()
    logits = feed([token])
    samples.token.append(time.perf_counter() - began)
    samples.attention.append(attention_clock() - before)
    return logits


if __name__ == "__main__":
    main()
