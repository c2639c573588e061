"""Seconds and extra memory of scoring against the length of the context.

Run by `scripts/bench scoring`. Extra memory is the largest resident size seen while scoring less that before, mapped
files left out and the full cache being there already; the scores themselves, 4 bytes a pair, are part of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kvz.bench.documents import text_of
from kvz.bench.file_names import shown
from kvz.bench.machine import describe_machine
from kvz.bench.pages import fill_place
from kvz.bench.peak import can_watch, watched
from kvz.cli.console import emit, note
from kvz.errors import UsageError
from kvz.models.language_model import LanguageModel, load_model
from kvz.models.prefill import prefill
from kvz.prompt import context_ids, make_frame
from kvz.scoring.method import Context
from kvz.scoring.registry import make_method

__all__ = ["main"]

METHODS = ("kvzip-rms", "kvzip", "kvzip+", "h2o", "snapkv")
LENGTHS = (1024, 2048, 3072, 4096, 6144, 7936)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; `--json`, `--plot` and `--into` write the numbers, the picture and the table."""
    parser = argparse.ArgumentParser(prog="scripts/bench scoring", description=__doc__)
    parser.add_argument(
        "--lengths", default=",".join(map(str, LENGTHS)), help="tokens of context (default %(default)s)"
    )
    parser.add_argument("--methods", default=",".join(METHODS), help="default %(default)s")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32")
    parser.add_argument("--model", default=None, help="as kvz -m; default the embedded model")
    parser.add_argument("--json", type=Path, default=None, help="also write the numbers to this file")
    parser.add_argument("--from", dest="source", type=Path, default=None, help="measure nothing, show this file")
    parser.add_argument("--plot", type=Path, default=None, help="draw them to this .svg or .png file")
    parser.add_argument("--into", type=Path, default=None, help="put the table into this page, at <!-- scoring -->")
    options = parser.parse_args(arguments)
    result = json.loads(options.source.read_text()) if options.source else measure(options)
    table = markdown(result)
    for line in table:
        emit(line)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        from kvz.bench.scoring_plot import draw

        draw(result, options.plot)
    if options.into:
        fill_place(options.into, "scoring", table)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All numbers of one run."""
    if not can_watch(torch.device("cpu")):
        raise UsageError("memory cannot be watched here: it takes /proc and glibc; measure on Linux")
    model = load_model(options.model, "cpu", options.dtype, note)
    lengths = [int(length) for length in options.lengths.split(",")]
    names = options.methods.split(",")
    list(_measure_length(model, names, 256))  # first calls allocate what they keep
    rows = [row for length in lengths for row in _measure_length(model, names, length)]
    return {"machine": describe_machine(), "model": shown(model.source.id), "dtype": model.dtype_name, "rows": rows}


def markdown(result: dict[str, Any]) -> list[str]:
    """Seconds and megabytes of each method at each length, as a table."""
    rows = result["rows"]
    names = list(dict.fromkeys(row["method"] for row in rows))
    lengths = list(dict.fromkeys(row["tokens"] for row in rows))
    of = {(row["method"], row["tokens"]): row for row in rows}
    lines = [
        f"{result['model']}, {result['dtype']}; {result['machine']}: seconds, and MB of extra memory.",
        "",
        "| tokens | full cache, MB | prefill, s | " + " | ".join(names) + " |",
        "|" + "--:|" * (3 + len(names)),
    ]
    for length in lengths:
        first = of[names[0], length]
        cells = [
            f"{of[name, length]['seconds']:.1f} s, {of[name, length]['extra_bytes'] / 1e6:.0f} MB" for name in names
        ]
        head = f"| {length:,} | {first['cache_bytes'] / 1e6:.0f} | {first['prefill_seconds']:.1f} | "
        lines.append(head + " | ".join(cells) + " |")
    return lines


def _measure_length(model: LanguageModel, names: Sequence[str], length: int) -> Iterator[dict[str, Any]]:
    frame = make_frame(model.tokenizer, model.end_ids)
    ids = context_ids(model.tokenizer, frame, text_of(model, length), length)
    began = time.perf_counter()
    full = prefill(model, [*frame.prefix_ids, *ids], slack=64)
    prefill_seconds = time.perf_counter() - began
    context = Context(frame, tuple(ids), full)
    for name in names:
        method = make_method(name)
        with watched(model.device) as extra:
            began = time.perf_counter()
            method.score(model, context, lambda tokens: None)
            seconds = time.perf_counter() - began
            extra_bytes = extra() or 0
        note(f"{length} tokens, {name}: {seconds:.1f} s, {extra_bytes / 1e6:.0f} MB")
        yield {
            "tokens": len(ids),
            "method": name,
            "seconds": seconds,
            "extra_bytes": extra_bytes,
            "cache_bytes": full.nbytes,
            "prefill_seconds": prefill_seconds,
        }


if __name__ == "__main__":
    main()
