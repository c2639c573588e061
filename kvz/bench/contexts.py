"""Contexts that have been prefilled and asked: what every measurement of agreement with the full cache starts from."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvz.bench.documents import EXAMPLES
from kvz.bench.file_names import plain_name
from kvz.bench.full_answers import FullAnswer, ask_full
from kvz.bench.readings import Reading, read_articles, read_examples
from kvz.cache.ragged import RaggedCache, survivors
from kvz.models.language_model import LanguageModel
from kvz.models.prefill import prefill
from kvz.prompt import make_frame
from kvz.scoring.method import Context

__all__ = [
    "ReadContext",
    "add_data_options",
    "described",
    "everything",
    "pruned",
    "read_context",
    "readings_of",
    "rounded",
    "shown",
]

_MOST_REPLAYED = 512  # tokens: more than any method's window


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
    frame = make_frame(model.tokenizer, model.end_ids)
    ids = model.tokenizer.encode_plain(reading.text)
    began = time.perf_counter()
    full = prefill(model, [*frame.prefix_ids, *ids], slack=_MOST_REPLAYED)
    seconds = time.perf_counter() - began
    context = Context(frame, tuple(ids), full)
    whole = everything(model, context)
    answers = ask_full(model, whole, frame.seam, reading.questions)
    return ReadContext(reading, context, answers, seconds, whole.nbytes)


def everything(model: LanguageModel, context: Context) -> RaggedCache:
    """The full cache as an archive has it."""
    return pruned(model, context, torch.ones(model.geometry.rows_total, len(context.ids), dtype=torch.bool))


def pruned(model: LanguageModel, context: Context, kept: Tensor) -> RaggedCache:
    """What `evict` makes, but the full cache stays: it is evicted from again and again."""
    full, geometry = context.cache, model.geometry
    layers = (survivors(full, index, kept[geometry.rows(index)], context.prefix) for index in range(full.layers))
    return RaggedCache(tuple(layers), full.length)


def shown(model: str) -> str:
    """A model's name without the folders of the machine that it was measured on."""
    return plain_name(Path(model).name if Path(model).exists() else model)


def rounded(measures: dict[str, float]) -> dict[str, float]:
    """To what a file needs: six decimals."""
    return {name: round(value, 6) for name, value in measures.items()}
