"""Questions a second over one archive: one at a time against several side by side, in one process.

Run by `scripts/bench batch`. Answers are compared too: in float32 they are to be the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvz.bench.documents import EXAMPLES, text_of
from kvz.bench.file_names import shown
from kvz.bench.machine import describe_machine
from kvz.cli.console import emit, note
from kvz.compression import compress_document
from kvz.decode.sequence import Answer
from kvz.documents import document_from_text
from kvz.errors import UsageError
from kvz.models.language_model import load_model
from kvz.progress import Progress
from kvz.recipe import make_recipe

__all__ = ["main"]

_METHOD = "snapkv"  # how pairs are chosen makes no difference to the time it takes to read them


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; `--json FILE` writes the numbers as well."""
    parser = argparse.ArgumentParser(prog="scripts/bench batch", description=__doc__)
    parser.add_argument("--tokens", type=int, default=6500, help="context length (default 6500)")
    parser.add_argument("--ratio", type=float, default=0.3, help="share of pairs kept (default 0.3)")
    parser.add_argument("--questions", type=int, default=16, help="questions asked (default 16)")
    parser.add_argument("--sizes", default="1,4,16", help="batch sizes (default %(default)s)")
    parser.add_argument("--new", type=int, default=32, help="longest answer, in tokens (default 32)")
    parser.add_argument("--dtype", default="float32", help="auto, bfloat16 or float32 (the default)")
    parser.add_argument("--model", default=None, help="as kvz -m; default the embedded model")
    parser.add_argument("--json", type=Path, default=None, help="also write the numbers to this file")
    options = parser.parse_args(arguments)
    result = measure(options)
    for line in report(result):
        emit(line)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All numbers of one run."""
    model = load_model(options.model, "cpu", options.dtype, note)
    document = document_from_text(text_of(model, options.tokens), "examples")
    archive = compress_document(document, model, make_recipe(options.ratio, method=_METHOD), Progress())
    session = archive.session(model)
    questions = _questions(options.questions)
    session.ask(questions[0], 4)  # neither side is charged for first-call work
    began = time.perf_counter()
    alone = [session.ask(question, options.new).ids for question in questions]
    rows = [{"size": "one at a time", "seconds": time.perf_counter() - began, "same": len(alone)}]
    for size in map(int, options.sizes.split(",")):
        began = time.perf_counter()
        answers = list(session.ask_all(questions, options.new, size=size))
        seconds = time.perf_counter() - began
        same = sum(isinstance(a, Answer) and a.ids == ids for a, ids in zip(answers, alone, strict=True))
        rows.append({"size": str(size), "seconds": seconds, "same": same})
    return {
        "machine": describe_machine(),
        "model": shown(model.source.id),
        "dtype": model.dtype_name,
        "tokens": archive.manifest.prompt.context_tokens,
        "ratio": options.ratio,
        "questions": len(questions),
        "new_tokens": sum(map(len, alone)) / len(alone),
        "rows": rows,
    }


def report(result: dict[str, Any]) -> list[str]:
    """The numbers as lines to read."""
    count, first = result["questions"], result["rows"][0]["seconds"]
    lines = [
        result["machine"],
        f"{result['model']}, {result['dtype']}, {result['tokens']} tokens of context, r = {result['ratio']:g}: "
        f"{count} questions, {result['new_tokens']:.0f} tokens an answer on average",
        "",
        f"{'batch':<15}{'seconds':>9}{'questions/s':>13}{'times':>7}{'same answers':>14}",
    ]
    for row in result["rows"]:
        rate, times = count / row["seconds"], first / row["seconds"]
        same = f"{row['same']} of {count}"
        lines.append(f"{row['size']:<15}{row['seconds']:>9.1f}{rate:>13.2f}{times:>7.1f}{same:>14}")
    return lines


def _questions(count: int) -> list[str]:
    """Questions to the examples, in turn. Raises UsageError if there are too few."""
    lines = [
        line
        for path in sorted(EXAMPLES.glob("*.questions.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    if len(lines) < count:
        raise UsageError(f"there are {len(lines)} example questions; ask for no more")
    return [json.loads(line)["question"] for line in lines[:count]]


if __name__ == "__main__":
    main()
