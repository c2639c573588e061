"""Needles of a file: sentences to hide in the file's own texts, each with a question and its answers.

A row of its JSONL has `context` (or `haystack`), `needle`, `question` (or `retrieval_question`) and `answer` (or
`answers`). A needle that its context does not hold yet is hidden at `depth`, from 0 to 1; rows without one are hidden
at depths spread evenly over the file, in its order. `length` may say what length the row stands for on a heat map.
"""

from __future__ import annotations

import re
from pathlib import Path

from kvz.bench.metrics import ANY_FOUND
from kvz.bench.tasks.haystack import hide, written_sentences
from kvz.bench.tasks.loaded import Loaded
from kvz.bench.tasks.rows import Row, read_rows
from kvz.bench.tasks.task import Question, Sample

__all__ = ["load_needles"]


def load_needles(name: str, source: Path) -> Loaded:
    """The task over a file. Raises UsageError, naming the line."""
    rows = read_rows(source)
    last = max(1, len(rows) - 1)
    samples = tuple(_sample(row, number / last) for number, row in enumerate(rows))
    return Loaded(name, ANY_FOUND, samples, 64, f"{source.name}, needles in texts of its own")


def _sample(row: Row, usual: float) -> Sample:
    context, needle = row.filled("context", "haystack"), row.filled("needle").strip()
    if _place(needle, context) is None:
        depth = row.number("depth", 0, 1) if row.has("depth") else usual
        context = hide(written_sentences(context), [needle], [depth])
    rest = len(context) - len(needle)
    facts: dict[str, float | str] = {"depth": round((_place(needle, context) or 0) / max(1, rest), 2)}
    if row.has("length"):
        facts["length"] = int(row.number("length", 1, 10**9))
    asked = Question(row.filled("question", "retrieval_question"), row.texts("answer", "answers"))
    return Sample(context, (asked,), facts)


def _place(needle: str, context: str) -> int | None:
    """Where a needle begins; one that is part of longer words, as "is 42" of "is 427", is not there."""
    found = re.search(rf"(?<!\w){re.escape(needle)}(?!\w)" if _has_words(needle) else re.escape(needle), context)
    return None if found is None else found.start()


def _has_words(needle: str) -> bool:
    """Whether it begins and ends in a script that puts something between words."""
    return all(letter < "\u0e00" for letter in (needle[0], needle[-1]))
