"""A task of the user's own: a JSONL file of contexts, each with questions and answers.

A line is an object with `context`, `questions` (a list of texts) and `answers` (for each question a text, or a list of
texts). `metric` may name what scores them, the same in every line; without it, an answer is right if it can be found
in what the model wrote.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from kvz.bench.metrics import ANY_FOUND, METRICS, Metric
from kvz.bench.tasks.loaded import Loaded
from kvz.bench.tasks.rows import Row, as_texts, read_rows
from kvz.bench.tasks.task import Question, Sample
from kvz.errors import UsageError

__all__ = ["load_own"]


def load_own(name: str, source: Path) -> Loaded:
    """The task over a file. Raises UsageError, naming the line."""
    rows = read_rows(source)
    metric = _metric(rows)
    samples = tuple(_sample(row, metric) for row in rows)
    shared = any(len(sample.questions) > 1 for sample in samples)
    return Loaded(name, metric, samples, 128, source.name, shared=shared)


def _sample(row: Row, metric: Metric) -> Sample:
    questions, answers = row.texts("questions"), row.items("answers")
    if len(questions) != len(answers):
        raise UsageError(f"{row.where}: {len(questions)} questions and {len(answers)} answers; give one for each")
    right = [as_texts(answer, f"{row.where}: answer {number}") for number, answer in enumerate(answers, 1)]
    for number, texts in enumerate(right, 1):
        for text in texts:
            _check_answer(text, metric, f"{row.where}: answer {number}")
    return Sample(row.filled("context"), tuple(map(Question, questions, right)))


def _check_answer(text: str, metric: Metric, where: str) -> None:
    """Raise UsageError for an answer that the metric finds in nothing, or in no answer."""
    alone = Question("", (text,))
    if metric.score(text, alone) == 0 or metric.score("", alone) > 0:
        raise UsageError(f"{where}, {text[:40]!r}, is none that the metric {metric.name} can score; use another metric")


def _metric(rows: list[Row]) -> Metric:
    names = [row.text("metric") if row.has("metric") else ANY_FOUND.name for row in rows]
    for row, name in zip(rows, names, strict=True):
        if name != names[0]:
            raise UsageError(f"{row.where}: its metric is {name}, that of the lines before {names[0]}; use one")
    if names[0] not in METRICS:
        near = difflib.get_close_matches(names[0], METRICS, 3) or METRICS
        raise UsageError(f"{rows[0].where}: there is no metric {names[0]}; there is {', '.join(near)}")
    return METRICS[names[0]]
