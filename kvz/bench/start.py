"""From settings and a model to a run: its plan, its estimates, its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from kvz.bench.environment import describe_environment, device_bandwidth
from kvz.bench.estimate import Speed, estimate_cell, measure_speed
from kvz.bench.plan import Key, Planned, key_of, plan_cells
from kvz.bench.run_folder import RunFolder
from kvz.bench.runner import Bench, run_cells
from kvz.bench.settings import Settings, config_of
from kvz.bench.tasks.registry import needs_data
from kvz.errors import UsageError
from kvz.models.identity import ModelIdentity, identify_model
from kvz.models.language_model import LanguageModel, placement

__all__ = ["Run", "estimated", "start_run"]


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is ready to measure. Leave its context to let others use the folder."""

    settings: Settings
    model: LanguageModel
    folder: RunFolder
    plan: list[Planned]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.folder.close()

    def measure(
        self, say: Callable[[str], None], told: Callable[[dict[str, Any]], None], interrupted: Callable[[], bool]
    ) -> None:
        """Measure what is not there yet; see `run_cells`."""
        done = {key_of(cell) for cell in self.folder.cells}
        if all(cell.key in done for cell in self.plan):
            return
        model, settings = self.model, self.settings
        bandwidth = device_bandwidth(model.device)
        environment = describe_environment(model, bandwidth)
        for difference in self.folder.differences(environment):
            say(f"kvz: {difference}: results of both are in this run")
        self.folder.add_environment(environment)
        bench = Bench(
            model=model,
            folder=self.folder,
            tasks={task.name: task for task in settings.tasks},
            seed=settings.seed,
            weight_bytes=model.decoder.architecture.step_weights * model.dtype.itemsize,
            bandwidth=bandwidth,
            estimates=_estimates(settings, self.plan, model.identity, model.dtype, model.device),
            say=say,
            told=lambda cell: told(dict(cell)),
            interrupted=interrupted,
        )
        run_cells(bench, self.plan)


def start_run(settings: Settings, model: LanguageModel, path: Path, anew: bool) -> Run:
    """The run of these settings in a folder, which may have been begun before.

    Raises UsageError if the folder holds another one, unless it is to start `anew`.
    """
    plan = _planned(settings, model.identity)
    planned = {cell.key: cell.samples for cell in plan}
    return Run(settings, model, RunFolder(path, config_of(settings, model), anew, planned), plan)


def estimated(
    settings: Settings, name: str | None, device: str, dtype: str, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The cells of a run, each with an estimate of its seconds or why it is skipped; no weights are loaded.

    Raises UsageError and ModelError as the run would.
    """
    target, kind = placement(device, dtype)
    identity = identify_model(name, say)
    plan = _with_contexts(settings, _planned(settings, identity), identity)
    seconds = _estimates(settings, plan, identity, kind, target)
    return [
        {
            "task": cell.task,
            "length": cell.length,
            "protocol": cell.protocol,
            "method": cell.method.label,
            "contexts": cell.samples,
            "estimated_seconds": round(seconds[cell.key] * cell.samples, 2),
            "skipped": cell.skipped,
        }
        for cell in plan
    ]


def _planned(settings: Settings, identity: ModelIdentity) -> list[Planned]:
    positions = identity.geometry.max_positions
    from_files = {task.name for name, task in zip(settings.names, settings.tasks, strict=True) if needs_data(name)}
    return plan_cells(
        settings.tasks, settings.lengths, settings.methods, settings.protocol, settings.samples, positions, from_files
    )


def _with_contexts(settings: Settings, plan: list[Planned], identity: ModelIdentity) -> list[Planned]:
    """The plan with as many contexts as a file has, and without the lengths that a task cannot have."""
    encode = identity.tokenizer.encode_plain
    tasks = {task.name: (name, task) for name, task in zip(settings.names, settings.tasks, strict=True)}
    made: list[Planned] = []
    for (task, length), group in groupby(plan, key=lambda cell: (cell.task, cell.length)):
        cells = list(group)
        if not all(cell.skipped for cell in cells):
            name, found = tasks[task]
            # tasks that are made here have as many as they are asked for: one says whether the length will do
            asked = cells[0].samples if needs_data(name) else 1
            try:
                count = len(found.samples(lambda text: len(encode(text)), length, asked, settings.seed))
                cells = [replace(cell, samples=cell.samples - asked + count) for cell in cells]
            except UsageError as error:
                cells = [replace(cell, skipped=cell.skipped or str(error)) for cell in cells]
        made += cells
    return made


def _estimates(
    settings: Settings, plan: list[Planned], identity: ModelIdentity, dtype: torch.dtype, device: torch.device
) -> dict[Key, float]:
    speed: Speed = measure_speed(dtype, device)
    tasks = {task.name: task for task in settings.tasks}
    return {cell.key: estimate_cell(cell, tasks[cell.task], identity, dtype.itemsize, speed) for cell in plan}
