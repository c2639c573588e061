"""Contexts that have been prefilled and asked: what every measurement of agreement with the full cache starts from."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

from kvz.bench.documents import EXAMPLES
from kvz.bench.full_answers import FullAnswer, ask_full
from kvz.bench.full_context import everything, prefill_context
from kvz.bench.readings import Reading, read_articles, read_examples
from kvz.models.language_model import LanguageModel
from kvz.scoring.method import Context

__all__ = [
    "ReadContext",
    "add_data_options",
    "described",
    "read_context",
    "readings_of",
    "rounded",
]


@dataclass(frozen=True, eq=False)
class ReadContext:
    """A context that has been prefilled, and the full cache's answers."""

    reading: Reading
    context: Context
    answers: list[FullAnswer]
    prefill_seconds: float
    full_bytes: int


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which contexts are read."""
    parser.add_argument("--data", type=Path, default=None, help="articles in SQuAD v1.1's layout; default the examples")
    parser.add_argument("--articles", default="0:", help="which of them, as a slice (default all)")
    parser.add_argument("--together", type=int, default=2, help="articles joined into one context (default 2)")
    parser.add_argument("--questions", type=int, default=6, help="questions of each article or example (default 6)")


def readings_of(options: argparse.Namespace) -> list[Reading]:
    """The contexts that they name. Raises UsageError."""
    if options.data is None:
        return read_examples(EXAMPLES, options.questions)
    first, _, last = options.articles.partition(":")
    return read_articles(options.data, int(first or 0), int(last or 2**31), options.together, options.questions)


def described(options: argparse.Namespace) -> str:
    """The same in a few words, for a result."""
    return f"{options.data.name}, articles {options.articles}" if options.data else "examples"


@torch.inference_mode()
def read_context(model: LanguageModel, reading: Reading) -> ReadContext:
    """Prefill a context and let the full cache answer its questions."""
    context, seconds = prefill_context(model, reading.text)
    whole = everything(model, context)
    answers = ask_full(model, whole, context.frame.seam, reading.questions)
    return ReadContext(reading, context, answers, seconds, whole.nbytes)


def rounded(measures: dict[str, float]) -> dict[str, float]:
    """To what a file needs: six decimals."""
    return {name: round(value, 6) for name, value in measures.items()}
