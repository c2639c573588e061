"""What a run measures: the user's words checked, and what stands where they say nothing."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvz.bench.documents import EXAMPLES
from kvz.bench.file_names import plain_name, shown
from kvz.bench.methods import Method, numbers_left_out, parse_methods, same_methods
from kvz.bench.plan import AUTO, check_protocol
from kvz.bench.tasks.registry import make_task, needs_data, takes_template, takes_texts, template_tasks
from kvz.bench.tasks.task import Task
from kvz.errors import ScoringError, UsageError
from kvz.scoring.head_methods import KVzipHead
from kvz.version import __version__

if TYPE_CHECKING:
    from kvz.models.language_model import LanguageModel

__all__ = ["Settings", "config_of", "make_settings"]

_LENGTH, _SAMPLES = 2000, 10
_QUICK_TASKS = {"needle": 3, "needles": 2}  # contexts of each
_QUICK_LENGTH, _QUICK_SAMPLES = 1000, 3
_METHODS = ("default", "snapkv", "rocketkv", "default/lowbit")
_MOST_SEED = 2**32
_MOST_SAMPLES = 10**6
_LEAST_BUDGET = 2  # one pair would read as all of them, the share 1


@dataclass(frozen=True)
class Settings:
    """Tasks, methods, lengths in tokens, contexts of each task, and how questions are asked.

    `names` are the tasks as they were asked for. A task read from a file may add its data set to that, as
    "longbench-hotpotqa"; `samples` goes by the tasks' own names. `same` are methods that are left out, and those which
    they are another name of.
    """

    names: tuple[str, ...]
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]
    lengths: tuple[int, ...]
    samples: Mapping[str, int]
    seed: int = 0
    protocol: str = AUTO
    data: Path | None = None
    texts: Path | None = None
    same: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None


def make_settings(
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    ratios: Sequence[float] = (),
    budgets: Sequence[int] = (),
    lengths: Sequence[int] = (),
    samples: int | None = None,
    seed: int = 0,
    protocol: str = AUTO,
    data: Path | None = None,
    texts: Path | None = None,
    template: str | None = None,
    quick: bool = False,
) -> Settings:
    """The settings of a run; without tasks it is a quick one. Raises UsageError for what does not exist or fit."""
    check_protocol(protocol)
    if any(length < 1 for length in lengths):
        raise UsageError("--length 0: give 1 token or more")
    if samples is not None and not 1 <= samples <= _MOST_SAMPLES:
        raise UsageError(f"--samples {samples}: give a number from 1 to {_MOST_SAMPLES}")
    if not 0 <= seed < _MOST_SEED:
        raise UsageError(f"seed {seed}: give a number from 0 to {_MOST_SEED - 1}")
    quick = quick or not tasks
    names = list(dict.fromkeys(tasks or _QUICK_TASKS))
    _check_numbers(methods or _METHODS, ratios, budgets)
    made = parse_methods(methods or _METHODS, ratios, budgets)
    if data is not None and not any(map(needs_data, names)):
        raise UsageError(f"--data is for tasks that are read from a file, not for {', '.join(names)}; leave it out")
    if texts is not None and not any(map(takes_texts, names)):
        raise UsageError(f"--texts is for tasks that hide things in text, not for {', '.join(names)}; leave it out")
    if template is not None and not template.strip():
        raise UsageError("--template is empty; give a name, or leave it out")
    if template is not None and not any(map(takes_template, names)):
        raise UsageError(
            f"--template is for {', '.join(template_tasks())}; {', '.join(names)} words questions its own way: "
            "leave it out"
        )
    of_task = _QUICK_TASKS if not tasks else {}
    usual = _QUICK_SAMPLES if quick else _SAMPLES
    tasks_made = tuple(make_task(name, data, texts, template) for name in names)
    return Settings(
        names=tuple(names),
        tasks=tasks_made,
        methods=tuple(made),
        lengths=tuple(dict.fromkeys(lengths)) or (_QUICK_LENGTH if quick else _LENGTH,),
        samples={task.name: samples or of_task.get(name, usual) for name, task in zip(names, tasks_made, strict=True)},
        seed=seed,
        protocol=protocol,
        data=data,
        texts=texts,
        same=same_methods(methods or _METHODS, ratios, budgets),
        template=template,
    )


def config_of(settings: Settings, model: LanguageModel) -> dict[str, Any]:
    """All that shapes the results, for config.json. Files are named without their folders, with a digest."""
    prints = model.identity.fingerprints
    texts = settings.texts or (EXAMPLES if any(map(takes_texts, settings.names)) else None)
    return {
        "kvz": __version__,
        "model": shown(model.source.id),
        "fingerprint": prints.model,
        "tokenizer": prints.tokenizer,
        "chat_template": prints.template,
        "dtype": model.dtype_name,
        "device": model.device.type,
        "tasks": list(settings.names),
        "methods": [method.label for method in settings.methods],
        "lengths": list(settings.lengths),
        "samples": dict(settings.samples),
        "seed": settings.seed,
        "protocol": settings.protocol,
        "metrics": {task.name: task.metric.name for task in settings.tasks},
        "data": _named(settings.data),
        "texts": _named(texts),
        "head_scores": _head_scores(settings.methods, model),
        "template": settings.template,
    }


def _head_scores(methods: Sequence[Method], model: LanguageModel) -> dict[str, str]:
    """Digests of what head-level methods go by: a model can be calibrated again. Without scores their cells fail."""
    from kvz.scoring.head_scores import find_head_scores

    found: dict[str, str] = {}
    for method in methods:
        scoring = method.recipe().method
        if isinstance(scoring, KVzipHead):
            with contextlib.suppress(ScoringError):
                scores = find_head_scores(model.identity, scoring.head_scores, scoring.kinds)
                found[scoring.name] = scores.digest(model.geometry)
    return found


def _check_numbers(methods: Sequence[str], ratios: Sequence[float], budgets: Sequence[int]) -> None:
    """Raise UsageError for a ratio or a budget that is out of range, or that no method has a use for."""
    for ratio in ratios:
        if not 0 < ratio <= 1:  # nan is not, either
            raise UsageError(f"--ratio {ratio:g}: give a number above 0 and up to 1")
    for budget in budgets:
        if budget < _LEAST_BUDGET:
            raise UsageError(f"--budget {budget}: give a whole number of pairs, {_LEAST_BUDGET} or more")
    left = numbers_left_out(methods)
    if ratios and "share" not in left:
        raise UsageError("--ratio is for methods that compress and have no number of their own; leave it out")
    if budgets and "step" not in left and ("share" not in left or ratios):
        raise UsageError("--budget is for methods that have no number of their own; leave it out")


def _named(path: Path | None) -> dict[str, str] | None:
    """A file's name and digest; of a folder, that of its texts."""
    if path is None:
        return None
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path] if path.is_file() else []
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    return {"name": plain_name(path.name if files else str(path)), "sha256": digest if files else ""}
