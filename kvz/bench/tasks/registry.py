"""Every task by name. A new one is a file in this folder and a line here.

A task is made here from nothing (`_PLAIN`) or around the texts of a folder (`_FROM_TEXTS`), or it is read from a file
(`_FROM_DATA`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvz.bench.tasks.gsm8k import load_gsm8k
from kvz.bench.tasks.haystack import NOISE, Haystack, read_haystack
from kvz.bench.tasks.longbench import load_longbench
from kvz.bench.tasks.lookups import KeyValue, PrefixSuffix
from kvz.bench.tasks.multi_hop import MultiHop
from kvz.bench.tasks.needle import Needle
from kvz.bench.tasks.needle_file import load_needles
from kvz.bench.tasks.needles import Needles
from kvz.bench.tasks.own import load_own
from kvz.bench.tasks.ruler_files import load_ruler
from kvz.bench.tasks.ruler_niah import NeedleField, Niah
from kvz.bench.tasks.ruler_qa import load_ruler_qa
from kvz.bench.tasks.ruler_tracking import VariableTracking
from kvz.bench.tasks.ruler_words import CommonWords, FrequentWords
from kvz.bench.tasks.scbench import load_scbench
from kvz.bench.tasks.squad import load_squad
from kvz.bench.tasks.task import Task
from kvz.bench.tasks.templates import worded
from kvz.bench.tasks.words import NUMBER, UUID, WORD
from kvz.errors import UsageError

__all__ = ["RULER", "make_task", "needs_data", "takes_template", "takes_texts", "task_names", "template_tasks"]

_PLAIN: dict[str, Callable[[str], Task]] = {
    "ruler-niah-single-1": partial(Niah, filler=NOISE),
    "ruler-niah-multikey-2": partial(Niah, filler=NeedleField(WORD, NUMBER)),
    "ruler-niah-multikey-3": partial(Niah, filler=NeedleField(UUID, UUID), keys=UUID, values=UUID),
    "ruler-variable-tracking": VariableTracking,
    "ruler-common-words": CommonWords,
    "ruler-frequent-words": FrequentWords,
    "key-value": KeyValue,
    "key-value-turns": partial(KeyValue, turns=True),
    "prefix-suffix": PrefixSuffix,
    "prefix-suffix-turns": partial(PrefixSuffix, turns=True),
}
_FROM_TEXTS: dict[str, Callable[[str, Haystack], Task]] = {
    "needle": Needle,
    "needles": Needles,
    "ruler-niah-single-2": Niah,
    "ruler-niah-single-3": partial(Niah, values=UUID),
    "ruler-niah-multikey-1": partial(Niah, hidden=4),
    "ruler-niah-multivalue": partial(Niah, each=4),
    "ruler-niah-multiquery": partial(Niah, hidden=4, asked=4),
    "multi-hop": MultiHop,
    "multi-hop-turns": partial(MultiHop, turns=True),
}
_FROM_DATA: dict[str, Callable[[str, Path], Task]] = {
    "ruler-qa-1": load_ruler_qa,
    "ruler-qa-2": load_ruler_qa,
    "squad": load_squad,
    "gsm8k": load_gsm8k,
    "longbench": load_longbench,
    "ruler": load_ruler,
    "scbench": load_scbench,
    "needle-file": load_needles,
    "own": load_own,
}
_TEMPLATES = {
    "squad": "short-answer",
    "gsm8k": "step-by-step",
    **dict.fromkeys(("ruler-qa-1", "ruler-qa-2", "ruler", "scbench", "needle-file", "own"), "plain"),
}
"""The usual template of tasks that have one; LongBench's sets have wordings of their own."""

RULER = tuple(sorted(name for name in {*_PLAIN, *_FROM_TEXTS, *_FROM_DATA} if name.startswith("ruler-")))
"""RULER's thirteen tasks."""


def task_names() -> tuple[str, ...]:
    """The names of all tasks, in order."""
    return tuple(sorted({*_PLAIN, *_FROM_TEXTS, *_FROM_DATA}))


def needs_data(name: str) -> bool:
    """Whether a task is read from a file."""
    return name in _FROM_DATA


def takes_texts(name: str) -> bool:
    """Whether a task hides things in the texts of a folder."""
    return name in _FROM_TEXTS


def takes_template(name: str) -> bool:
    """Whether the questions of a task can be worded by another template than its usual one."""
    return name in _TEMPLATES


def template_tasks() -> tuple[str, ...]:
    """The tasks that take a template."""
    return tuple(sorted(_TEMPLATES))


def make_task(name: str, data: Path | None = None, texts: Path | None = None, template: str | None = None) -> Task:
    """The task of that name: over the file `data` if it is read from one, around the .txt files in the folder `texts`.

    What a task does not use is ignored: several tasks are often made with the same two. Without `texts`, they are the
    example documents; without `template`, questions of a file are worded as is usual for the task. Raises UsageError.
    """
    if name in _PLAIN:
        return _PLAIN[name](name)
    if name in _FROM_TEXTS:
        return _FROM_TEXTS[name](name, read_haystack(texts))
    if name not in _FROM_DATA:
        near = difflib.get_close_matches(name, task_names(), 3) or task_names()
        raise UsageError(f"there is no task {name}; there is {', '.join(near)}")
    if data is None:
        raise UsageError(f"the task {name} is read from a file; name it with --data")
    task = _FROM_DATA[name](name, data)
    return worded(task, template or _TEMPLATES[name]) if name in _TEMPLATES else task
