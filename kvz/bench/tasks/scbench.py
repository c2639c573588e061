"""SCBench's sets that are scored by finding strings, from its files, as turns of a conversation.

Reads its JSONL (`context` or `input`, and `multi_turns` with `input` and `answer`), named as SCBench names its files.
Its summaries, code functions, choices and sums have scores of their own, which are not here.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from kvz.bench.metrics import ALL_FOUND, ANY_FOUND, FOUND_AS_WRITTEN, Metric
from kvz.bench.tasks.loaded import Loaded
from kvz.bench.tasks.rows import Row, read_rows
from kvz.bench.tasks.task import Question, Sample
from kvz.errors import UsageError

__all__ = ["SETS", "load_scbench"]

SETS: dict[str, tuple[Metric, int]] = {
    "kv": (FOUND_AS_WRITTEN, 150),
    "kv_hard": (FOUND_AS_WRITTEN, 150),
    "hashhop": (FOUND_AS_WRITTEN, 150),
    "prefix_suffix": (FOUND_AS_WRITTEN, 150),
    "qa_eng": (ANY_FOUND, 40),
    "many_shot": (ANY_FOUND, 10),
    "vt": (ALL_FOUND, 30),
}
"""How each is scored, and how long an answer may be."""


def load_scbench(name: str, source: Path) -> Loaded:
    """The task over one file, such as `scbench_kv.jsonl`. Raises UsageError, naming the line."""
    chosen = source.name.partition(".")[0].rpartition(":")[2].removeprefix("scbench_")
    if chosen not in SETS:
        near = difflib.get_close_matches(chosen, SETS, 3) or SETS
        raise UsageError(f"{source}: no set of SCBench known here has that name; known are {', '.join(near)}")
    metric, new_tokens = SETS[chosen]
    samples = tuple(map(_sample, read_rows(source)))
    licence = f"{source.name}, SCBench's {chosen}"
    return Loaded(f"{name}-{chosen}", metric, samples, new_tokens, licence, shared=True, turns=True)


def _sample(row: Row) -> Sample:
    turns = tuple(Question(turn.filled("input"), turn.texts("answer")) for turn in row.rows("multi_turns"))
    return Sample(row.filled("context", "input"), turns)
