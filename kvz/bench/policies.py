"""How faithful each decode policy is to the full cache, budget by budget: several questions over one context.

Run by `scripts/bench policies`. Contexts are articles (or the examples), needles in the examples' text, and a list of
keys and values. A context is prefilled once and read as a full archive, as an archive of the default method at r = 0.3,
and as RocketKV's first stage leaves it, which knew the first of the questions. Answers are the full cache's own,
teacher-forced; each of their tokens chooses for itself. Float32.
"""

from __future__ import annotations

import argparse
import json
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
from kvz.bench.documents import EXAMPLES
from kvz.bench.file_names import shown
from kvz.bench.full_answers import Reader
from kvz.bench.full_context import everything, pruned
from kvz.bench.lookups import make_lookups, make_needles
from kvz.bench.machine import describe_machine
from kvz.bench.pages import fill_place
from kvz.bench.policies_plot import draw
from kvz.bench.policies_report import markdown, report
from kvz.bench.readings import Reading
from kvz.cache.ragged import RaggedCache
from kvz.cli.console import emit, note
from kvz.config import DENSE, POLICIES
from kvz.decode.decoding import MAKERS, dense_reading
from kvz.decode.decoding import Reading as ArchiveReading
from kvz.demand import demand_of
from kvz.models.language_model import LanguageModel, load_model
from kvz.recipe import make_recipe
from kvz.scoring.selection import select

__all__ = ["main"]

BUDGETS = (64, 128, 256, 512, 1024)
RATIO = 0.3
FULL, KEPT, ROCKET = "full", f"r = {RATIO:g}", "rocketkv, one question"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; `--json FILE` keeps every question's numbers, `--from FILE` prints those of a run before."""
    parser = argparse.ArgumentParser(prog="scripts/bench policies", description=__doc__)
    add_data_options(parser)
    parser.add_argument("--policies", default=",".join(POLICIES), help="names (default all)")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="pairs a head (default %(default)s)")
    parser.add_argument("--model", default=None, help="as kvz -m; default the embedded model")
    parser.add_argument("--json", type=Path, default=None, help="also write everything to this file")
    parser.add_argument("--from", dest="source", type=Path, default=None, help="measure nothing, print this file")
    parser.add_argument("--into", type=Path, default=None, help="put the tables into this page, at <!-- PLACE -->")
    parser.add_argument("--place", default="policies", help="name of that place (default %(default)s)")
    parser.add_argument("--plot", type=Path, default=None, help="draw divergence against traffic (needs matplotlib)")
    options = parser.parse_args(arguments)
    result = json.loads(options.source.read_text()) if options.source else measure(options)
    for line in report(result):
        emit(line)
    if options.json:
        options.json.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    if options.plot:
        draw(result, options.plot)
    if options.into:
        fill_place(options.into, options.place, markdown(result))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All numbers of one run."""
    names, budgets = options.policies.split(","), [int(budget) for budget in options.budgets.split(",")]
    contexts = _contexts(options)
    model = load_model(options.model, "auto", "float32", note)
    cells: list[dict[str, Any]] = []
    lengths = []
    for number, (task, reading) in enumerate(contexts):
        read = read_context(model, reading)
        lengths.append(len(read.context.ids))
        note(f"{number + 1}/{len(contexts)} {reading.name}: {lengths[-1]} tokens")
        for cell in _cells(model, read, names, budgets):
            cells.append({"context": number, "task": task, **cell})
    return {
        "machine": describe_machine(),
        "model": shown(model.source.id),
        "data": described(options),
        "contexts": [reading.name for _, reading in contexts],
        "tokens": lengths,
        "questions": sum(len(reading.questions) for _, reading in contexts),
        "budgets": budgets,
        "heads": model.geometry.rows_total,
        "cells": cells,
    }


def _contexts(options: argparse.Namespace) -> list[tuple[str, Reading]]:
    """(task, reading) of each."""
    questions = options.questions
    made = [
        ("needle", make_needles(sorted(EXAMPLES.glob("manual.txt")), min(8, questions * options.together))),
        ("key-value", make_lookups(100, min(8, questions * options.together))),
    ]
    return [*(("questions", reading) for reading in readings_of(options)), *made]


@torch.inference_mode()
def _cells(model: LanguageModel, read: ReadContext, names: list[str], budgets: list[int]) -> Iterator[dict[str, Any]]:
    """All that is measured over one context."""
    prefix = read.context.prefix
    archives = {FULL: everything(model, read.context), KEPT: _evicted(model, read, make_recipe(RATIO))}
    for archive, cache in archives.items():
        yield {"archive": archive, "policy": DENSE, "budget": None, **_asked(model, read, dense_reading(cache))}
        for budget in budgets:
            for name in names:
                if name == "rocketkv-mt" and archive != FULL:
                    continue
                reading = MAKERS[name](name, cache, prefix, budget)
                yield {"archive": archive, "policy": name, "budget": budget, **_asked(model, read, reading)}
    for budget in budgets:
        recipe = make_recipe(budget=budget, method="rocketkv", query=read.reading.questions[0][0])
        cache = _evicted(model, read, recipe)
        reading = MAKERS["hsa"]("hsa", cache, prefix, budget)
        yield {"archive": ROCKET, "policy": "hsa", "budget": budget, **_asked(model, read, reading)}


def _evicted(model: LanguageModel, read: ReadContext, recipe: Any) -> RaggedCache:
    demand = demand_of(recipe, model, read.context.frame, read.context.ids)
    scores = recipe.method.score(model, read.context, lambda tokens: None)
    return pruned(model, read.context, select(scores, demand, recipe.allocation))


def _asked(model: LanguageModel, read: ReadContext, reading: ArchiveReading) -> dict[str, Any]:
    """Agreement on each question, and the context's pairs that a token reads of a head, on average."""
    reader = Reader(model, reading.cache, reading)
    asked = [rounded(asdict(reader.agreement(answer))) for answer in read.answers]
    full = [index for index, layer in enumerate(reading.cache.layers) if layer.window is None]
    pairs = sum(reader.tokens.read(layer).pairs for layer in full) / model.geometry.rows_total - read.context.prefix
    return {"pairs": round(pairs, 1), "asked": asked}


if __name__ == "__main__":
    main()
