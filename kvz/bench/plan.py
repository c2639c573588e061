"""Which cells a run has: task x length x protocol x method, and why some of them are impossible.

Protocols: "single-shot", a question at a time, seen at compression by the methods that can use it; "multi-query",
several questions over one archive that was made without them; "multi-turn", one conversation, whose first question is
seen at compression. "auto" is a task's own, and single-shot for methods that need a question.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvz.bench.methods import FULL, REPEAT_KV, Method
from kvz.bench.tasks.task import Task
from kvz.errors import UsageError

__all__ = ["AUTO", "PROTOCOLS", "Key", "Planned", "check_protocol", "key_of", "plan_cells"]

AUTO = "auto"
SINGLE_SHOT, MULTI_QUERY, MULTI_TURN = PROTOCOLS = ("single-shot", "multi-query", "multi-turn")
Key = tuple[str, int, str, str]
"""Task, length, protocol and the label of the method."""


@dataclass(frozen=True)
class Planned:
    """A cell to be measured over `samples` contexts; or, with `skipped`, one that cannot be, and why."""

    task: str
    length: int
    protocol: str
    method: Method
    samples: int
    skipped: str | None = None

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        return self.task, self.length, self.protocol, self.method.label

    @property
    def turns(self) -> bool:
        """Whether its questions are turns of one conversation."""
        return self.protocol == MULTI_TURN

    @property
    def sees_questions(self) -> bool:
        """Whether each question has an archive of its own."""
        return self.protocol == SINGLE_SHOT and self.method.takes_question


def key_of(line: Mapping[str, Any]) -> Key:
    """The key of a cell that a line of a run's files is about."""
    return line["task"], line["length"], line["protocol"], line["method"]


def check_protocol(name: str) -> None:
    """Raise UsageError unless there is a protocol of that name."""
    if name not in (AUTO, *PROTOCOLS):
        raise UsageError(f"there is no protocol '{name}'; there is {', '.join((AUTO, *PROTOCOLS))}")


def plan_cells(
    tasks: Sequence[Task],
    lengths: Sequence[int],
    methods: Sequence[Method],
    protocol: str,
    samples: Mapping[str, int],
    positions: int,
    from_files: Collection[str] = (),
) -> list[Planned]:
    """All cells, those of one task and length together, the full cache first of each protocol.

    `samples` has the contexts of each task, `positions` is the most that the model has. The contexts of tasks
    `from_files` may be shorter than the length.
    """
    compared = [method for method in methods if method.label not in (FULL.label, REPEAT_KV.label)]
    cells = []
    for task in tasks:
        of_method = {method: _protocol(task, method, protocol) for method in compared}
        own = _own(task) if protocol == AUTO else protocol
        for length in lengths:
            for name in dict.fromkeys([own, *of_method.values()]):
                mine = [method for method in compared if of_method[method] == name]
                if not mine and of_method and protocol == AUTO:
                    continue
                for method in (FULL, REPEAT_KV, *mine):
                    reason = _impossible(_Case(task, length, name, method, positions, task.name in from_files))
                    cells.append(Planned(task.name, length, name, method, samples[task.name], reason))
    return cells


def _own(task: Task) -> str:
    if task.turns:
        return MULTI_TURN
    return MULTI_QUERY if task.shared else SINGLE_SHOT


def _protocol(task: Task, method: Method, asked: str) -> str:
    own = _own(task) if asked == AUTO else asked
    return SINGLE_SHOT if asked == AUTO and own == MULTI_QUERY and method.needs_question else own


@dataclass(frozen=True)
class _Case:
    task: Task
    length: int
    protocol: str
    method: Method
    positions: int
    from_file: bool


def _impossible(case: _Case) -> str | None:
    """Why a cell cannot be measured, as far as that is known before any work."""
    return next(filter(None, (reason(case) for reason in _REASONS)), None)


def _too_long(case: _Case) -> str | None:
    if case.from_file or case.length + case.task.new_tokens <= case.positions:
        return None
    return f"{case.length} tokens and an answer of {case.task.new_tokens} exceed the model's {case.positions} positions"


def _has_no_turns(case: _Case) -> str | None:
    single = case.protocol == MULTI_TURN and not case.task.shared and not case.task.turns
    return "the task asks one question of a context: there are no turns" if single else None


def _has_turns_only(case: _Case) -> str | None:
    torn = case.protocol != MULTI_TURN and case.task.turns
    return "its questions are turns of one conversation: they do not stand alone" if torn else None


def _lacks_question(case: _Case) -> str | None:
    if case.protocol != MULTI_QUERY or not case.method.needs_question:
        return None
    return f"{case.method.compress} chooses by the question, which multi-query does not show it; try single-shot"


def _reads_all(case: _Case) -> str | None:
    budget = case.method.budget
    if budget is None or budget < case.length:
        return None
    return f"a budget of {budget} pairs covers all {case.length} tokens: they would be read densely"


def _keeps_all(case: _Case) -> str | None:
    keep = case.method.keep
    if keep is None or keep < case.length:
        return None
    return f"{keep} pairs a head are all {case.length} tokens: it would be the full cache"


_REASONS = (_too_long, _has_no_turns, _has_turns_only, _lacks_question, _reads_all, _keeps_all)
