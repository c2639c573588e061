"""How faithful each method is to the full cache, at each ratio: several questions over one compressed context.

Run by `scripts/bench fidelity`. A context is prefilled once; each method scores it once, and every ratio is evicted and
asked anew. Float32, so that nothing but eviction makes a difference.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kvz.bench.contexts import (
    ReadContext,
    add_data_options,
    described,
    read_context,
    readings_of,
    rounded,
)
from kvz.bench.fidelity_report import markdown, report
from kvz.bench.file_names import shown
from kvz.bench.full_answers import Reader
from kvz.bench.full_context import pruned
from kvz.bench.machine import describe_machine
from kvz.bench.pages import fill_place
from kvz.cli.console import emit, note
from kvz.demand import demand_of
from kvz.errors import UsageError
from kvz.models.language_model import LanguageModel, load_model
from kvz.recipe import make_recipe
from kvz.scoring.selection import select

__all__ = ["main"]

RATIOS = (0.7, 0.5, 0.3, 0.2, 0.1)

ONE_QUESTION = "snapkv, one question"
SPECS: dict[str, dict[str, Any]] = {
    "kvzip-rms": {"method": "kvzip-rms"},
    "kvzip": {"method": "kvzip"},
    "kvzip, logit": {"method": "kvzip", "weight": "logit"},
    "kvzip, uniform": {"method": "kvzip", "allocation": "uniform"},
    "kvzip+": {"method": "kvzip+"},
    "kvzip+, floor 0.35": {"method": "kvzip+", "floor": 0.35},
    "kvzip-head": {"method": "kvzip-head"},
    "duo": {"method": "duo"},
    ONE_QUESTION: {"method": "snapkv"},
    "snapkv": {"method": "snapkv"},
    "pyramidkv": {"method": "pyramidkv"},
    "adakv": {"method": "adakv"},
    "h2o": {"method": "h2o"},
    "recent": {"method": "recent"},
    "random": {"method": "random"},
}
"""What is measured: a name, and the recipe's options. The others are compared with "kvzip"."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; `--json FILE` keeps every question's numbers, `--from FILE` prints those of a run before."""
    parser = argparse.ArgumentParser(prog="scripts/bench fidelity", description=__doc__)
    add_data_options(parser)
    parser.add_argument("--methods", default=None, help=f"names, separated by ';', of: {'; '.join(SPECS)}")
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)), help="shares kept (default %(default)s)")
    parser.add_argument("--model", default=None, help="as kvz -m; default the embedded model")
    parser.add_argument("--json", type=Path, default=None, help="also write everything to this file")
    parser.add_argument("--from", dest="source", type=Path, default=None, help="measure nothing, print this file")
    parser.add_argument("--into", type=Path, default=None, help="put the tables into this page, at <!-- PLACE -->")
    parser.add_argument("--place", default="fidelity", help="name of that place (default %(default)s)")
    options = parser.parse_args(arguments)
    result = json.loads(options.source.read_text()) if options.source else measure(options)
    for line in report(result):
        emit(line)
    if options.json:
        options.json.write_text(json.dumps(result, indent=None, separators=(",", ":")) + "\n")
    if options.into:
        fill_place(options.into, options.place, markdown(result))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All numbers of one run."""
    names = [name.strip() for name in options.methods.split(";")] if options.methods else list(SPECS)
    if unknown := [name for name in names if name not in SPECS]:
        raise UsageError(f"no method {unknown[0]!r} to measure; there are: {'; '.join(SPECS)}")
    ratios = [float(ratio) for ratio in options.ratios.split(",")]
    readings = readings_of(options)
    model = load_model(options.model, "auto", "float32", note)
    cells: list[dict[str, Any]] = []
    for number, reading in enumerate(readings):
        read = read_context(model, reading)
        note(f"{number + 1}/{len(readings)} {reading.name}: {len(read.context.ids)} tokens")
        for name in names:
            cells += [{"context": number, "method": name, **cell} for cell in _cells(model, read, SPECS[name], ratios)]
    return {
        "machine": describe_machine(),
        "model": shown(model.source.id),
        "data": described(options),
        "contexts": [reading.name for reading in readings],
        "questions": sum(len(reading.questions) for reading in readings),
        "ratios": ratios,
        "cells": cells,
    }


@torch.inference_mode()
def _cells(
    model: LanguageModel, read: ReadContext, spec: dict[str, Any], ratios: list[float]
) -> Iterator[dict[str, Any]]:
    """One method's numbers at each ratio."""
    if spec is SPECS[ONE_QUESTION]:
        spec = {**spec, "query": read.reading.questions[0][0]}
    scores, seconds = None, 0.0
    for ratio in ratios:
        recipe = make_recipe(ratio, **spec)
        try:
            demand = demand_of(recipe, model, read.context.frame, read.context.ids)
        except UsageError as error:
            yield {"ratio": ratio, "refused": str(error)}
            continue
        if scores is None:
            began = time.perf_counter()
            scores = recipe.method.score(model, read.context, lambda tokens: None)
            seconds = time.perf_counter() - began
        began = time.perf_counter()
        cache = pruned(model, read.context, select(scores, demand, recipe.allocation))
        evict_seconds = time.perf_counter() - began
        reader = Reader(model, cache)
        asked = [rounded(asdict(reader.agreement(answer))) for answer in read.answers]
        yield {
            "ratio": ratio,
            "bytes": cache.nbytes,
            "full_bytes": read.full_bytes,
            "seconds": round(seconds + evict_seconds, 3),
            "prefill_seconds": round(read.prefill_seconds, 3),
            "asked": asked,
        }


if __name__ == "__main__":
    main()
