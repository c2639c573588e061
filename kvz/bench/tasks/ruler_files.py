"""Files that RULER's own scripts wrote, or sets of them in one file, scored as RULER scores them.

Reads JSONL (`input`, `outputs`), whose last line of `input` is the question, or with `context`, `question` and
`answer` apart. A row's `task`, such as "qa_1", says what it is of; where no row has one, the file's or its folder's
name does, as RULER names them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kvz.bench.metrics import ALL_FOUND, ANY_FOUND, Metric
from kvz.bench.tasks.loaded import Loaded
from kvz.bench.tasks.rows import Row, read_rows
from kvz.bench.tasks.task import Question, Sample
from kvz.errors import UsageError

__all__ = ["load_ruler"]

_QA = re.compile(r"(?:ruler[-_])?qa(?![a-z])", re.IGNORECASE)
_OTHERS = re.compile(r"(?:ruler[-_])?(?:niah|vt|cwe|fwe|variable|common|frequent)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class _ByKind:
    """RULER's metric of each question's task: any answer for its `qa` tasks, the share of all of them for others."""

    name: str = "ruler"

    def score(self, prediction: str, question: Question) -> float:
        """From 0 to 1; the question's `kind` is its task."""
        return _metric(question.kind).score(prediction, question)


def load_ruler(name: str, source: Path) -> Loaded:
    """The task over one file. Raises UsageError, naming the line, also if only some of the rows say their task."""
    rows = read_rows(source)
    tasks = _tasks(rows, source)
    metrics = {_metric(task).name: _metric(task) for task in tasks}
    metric = next(iter(metrics.values())) if len(metrics) == 1 else _ByKind()
    return Loaded(name, metric, tuple(map(_sample, rows, tasks)), 128, f"{source.name}, in RULER's layout")


def _tasks(rows: list[Row], source: Path) -> list[str]:
    """The task of each row."""
    named = [row.has("task") for row in rows]
    if all(named):
        return [_known(row) for row in rows]
    if any(named):
        row = rows[named.index(False)]
        raise UsageError(f'{row.where}: no "task" in it, though other rows have one; name it in each row or in none')
    return [next(filter(_QA.match, (source.stem, source.parent.name)), source.stem)] * len(rows)


def _known(row: Row) -> str:
    task = row.filled("task")
    if not (_QA.match(task) or _OTHERS.match(task)):
        raise UsageError(f'{row.where}: "task" {task[:40]!r} is none of RULER\'s: niah_..., vt, cwe, fwe, qa_1, qa_2')
    return task


def _metric(task: str) -> Metric:
    return ANY_FOUND if _QA.match(task) else ALL_FOUND


def _sample(row: Row, task: str) -> Sample:
    answers = row.texts("outputs", "answers", "answer")
    if row.has("context"):
        return Sample(row.filled("context"), (Question(row.filled("question"), answers, task),))
    context, line_end, question = row.text("input").strip().rpartition("\n")
    if not line_end or not context.strip():
        raise UsageError(f'{row.where}: "input" is one line; its last line should be the question')
    return Sample(context.rstrip(), (Question(question.strip(), answers, task),))
