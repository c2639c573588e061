"""Files that RULER's own scripts wrote, scored as RULER scores them.

Reads its JSONL (`input`, `outputs`), whose last line of `input` is the question, or one with `context`, `question` and
`answer` apart.
"""

from __future__ import annotations

from pathlib import Path

from kvz.bench.metrics import ALL_FOUND, ANY_FOUND
from kvz.bench.tasks.loaded import Loaded
from kvz.bench.tasks.rows import Row, read_rows
from kvz.bench.tasks.task import Question, Sample
from kvz.errors import UsageError

__all__ = ["load_ruler"]


def load_ruler(name: str, source: Path) -> Loaded:
    """The task over one file. One whose `task`, name or folder begins with "qa" wants any of its answers.

    Raises UsageError, naming the line.
    """
    rows = read_rows(source)
    names = [str(rows[0].fields.get("task", "")), source.stem, source.parent.name]
    metric = ANY_FOUND if any(text.startswith("qa") for text in names) else ALL_FOUND
    return Loaded(name, metric, tuple(map(_sample, rows)), 128, f"{source.name}, in RULER's layout")


def _sample(row: Row) -> Sample:
    answers = row.texts("outputs", "answers", "answer")
    if row.has("context"):
        return Sample(row.filled("context"), (Question(row.filled("question"), answers),))
    context, line_end, question = row.text("input").strip().rpartition("\n")
    if not line_end or not context.strip():
        raise UsageError(f'{row.where}: "input" is one line; its last line should be the question')
    return Sample(context.rstrip(), (Question(question.strip(), answers),))
