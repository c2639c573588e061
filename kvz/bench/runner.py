"""Measures the cells of a run: context after context, each prefilled once for all methods and freed after them.

Whatever is measured is written at once; a run that is started again leaves it out. A cell that fails is recorded, and
the others go on. A context that a cell cannot have is left out of it, and its note says so; a cell without any is
skipped.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, cast

import torch

from kvz.bench.aggregate import cell_of, failed_cell, skipped_cell
from kvz.bench.cell_run import Part, measure, measure_expanded
from kvz.bench.interrupts import check_interrupt
from kvz.bench.methods import FULL
from kvz.bench.plan import Key, Planned, key_of
from kvz.bench.prefilled import Impossible, Prefilled, check_room
from kvz.bench.report.cell import Cell
from kvz.bench.run_folder import RunFolder
from kvz.bench.tasks.task import Sample, Task
from kvz.bench.time_left import TimeLeft
from kvz.bench.warm_up import warm_up
from kvz.errors import UsageError
from kvz.models.language_model import LanguageModel

__all__ = ["Bench", "run_cells"]


@dataclass(frozen=True, eq=False)
class Bench:
    """What a run is made with.

    `tasks` by name; `estimates` are seconds for one context of each cell; `bandwidth` in bytes a second. `say` is told
    how it goes, `told` gets each cell, and `interrupted` says whether a signal has come that a library may have
    swallowed.
    """

    model: LanguageModel
    folder: RunFolder
    tasks: Mapping[str, Task]
    seed: int
    weight_bytes: int
    bandwidth: float
    estimates: Mapping[Key, float]
    say: Callable[[str], None] = lambda message: None
    told: Callable[[Cell], None] = lambda cell: None
    interrupted: Callable[[], bool] = lambda: False


def run_cells(bench: Bench, plan: Sequence[Planned]) -> None:
    """Measure what is not yet in the folder. Raises KeyboardInterrupt, and OutputError if results cannot be written."""
    left = TimeLeft(plan, bench.estimates, bench.folder)
    work = _Work(bench, left)
    for cell in plan:
        if cell.skipped:
            work.skip(cell, cell.skipped)
    if all(cell.key in work.done for cell in plan):
        return
    warm_up(bench.model, [cell.method for cell in plan if cell.key not in work.done], bench.interrupted)
    left.start()
    for (task, length), cells in groupby(plan, key=lambda cell: (cell.task, cell.length)):
        work.group(bench.tasks[task], length, list(cells))


class _Work:
    """The run as it goes: which cells are done, what contexts have given so far, and why some give a cell nothing."""

    def __init__(self, bench: Bench, left: TimeLeft) -> None:
        self._bench = bench
        self._left = left
        self.done = {key_of(cell) for cell in bench.folder.cells}
        self._left_out: dict[Key, dict[int, str]] = {}
        self._parts: dict[Key, dict[int, Part]] = {}
        for part in bench.folder.samples:
            self._parts.setdefault(key_of(part), {})[part["sample"]] = part

    def skip(self, cell: Planned, reason: str) -> None:
        """Record a cell that cannot be measured."""
        self._record(cell, skipped_cell(cell, reason))

    def group(self, task: Task, length: int, cells: Sequence[Planned]) -> None:
        """Measure the cells of one task and length."""
        if all(cell.key in self.done for cell in cells):
            return
        try:
            counter = self._bench.model.tokenizer.encode_plain
            samples = task.samples(lambda text: len(counter(text)), length, cells[0].samples, self._bench.seed)
        except UsageError as error:
            for cell in cells:
                self.skip(cell, str(error))
            return
        except Exception as error:
            for cell in cells:
                self._failed(cell, error)
            return
        if len(samples) < cells[0].samples:
            found = f"{len(samples)} contexts, {cells[0].samples} were asked for"
            self._bench.say(f"{task.name}, {length:,} tokens: the file has {found}")
        self._leave_out_too_long(task, samples, cells)
        for cell in cells:
            self._complete(cell, len(samples))
        for number, sample in enumerate(samples):
            waiting = [cell for cell in cells if self._waits(cell, number)]
            if waiting:
                where = f"{task.name}, {length:,} tokens, context {number + 1} of {len(samples)}"
                self._bench.say(f"{where}: {self._left}")
                self._context(task, sample, number, waiting, len(samples))

    def _context(self, task: Task, sample: Sample, number: int, cells: Sequence[Planned], count: int) -> None:
        prefilled: Prefilled | None = None
        for cell in cells:
            try:
                prefilled = prefilled or Prefilled(self._bench.model, sample, task.new_tokens)
                part = self._measure(prefilled, cell, task, number)
            except Impossible as error:
                self._leave_out(cell, number, str(error))
                self._complete(cell, count)
                continue
            except Exception as error:
                self._failed(cell, error)
                continue
            line = {**_named(cell), "sample": number, "tokens": len(prefilled.context.ids), **part}
            self._add(cell, number, {**line, "facts": sample.facts})
            self._complete(cell, count)
        del prefilled
        _free()

    def _measure(self, prefilled: Prefilled, cell: Planned, task: Task, number: int) -> Part:
        if not cell.method.expands:
            return measure(prefilled, cell, task.metric, stored=number == 0)
        whole = replace(cell, method=FULL)
        full = self._parts.get(whole.key, {}).get(number)
        if full is None:  # its line may be lost where its cell is there
            if not any(key_of(found) == whole.key and "score" in found for found in self._bench.folder.cells):
                raise Impossible("the full cache was not measured")
            full = measure(prefilled, whole, task.metric, stored=number == 0)
        names = ("scores", "agreement", "kl", "answers", "new_tokens", "kv_bytes", "whole", "seconds")
        return measure_expanded(prefilled, {name: full[name] for name in names})

    def _failed(self, cell: Planned, error: Exception) -> None:
        check_interrupt(error, self._bench.interrupted)
        self._record(cell, failed_cell(cell, error))
        _free()

    def _leave_out_too_long(self, task: Task, samples: Sequence[Sample], cells: Sequence[Planned]) -> None:
        for turns in {cell.turns for cell in cells}:
            own = [cell for cell in cells if cell.turns == turns]
            for number, sample in enumerate(samples):
                try:
                    check_room(self._bench.model, sample, task.new_tokens, turns)
                except Impossible as error:
                    for cell in own:
                        self._leave_out(cell, number, str(error))
                except Exception as error:
                    for cell in own:
                        self._failed(cell, error)

    def _leave_out(self, cell: Planned, number: int, reason: str) -> None:
        self._left_out.setdefault(cell.key, {})[number] = reason

    def _waits(self, cell: Planned, number: int) -> bool:
        seen = {*self._parts.get(cell.key, ()), *self._left_out.get(cell.key, ())}
        return cell.key not in self.done and number not in seen

    def _add(self, cell: Planned, number: int, part: Part) -> None:
        self._parts.setdefault(cell.key, {})[number] = part
        self._bench.folder.add_sample(part)
        self._left.measured(cell)

    def _complete(self, cell: Planned, count: int) -> None:
        """Record a cell if all its contexts are measured, or left out."""
        if cell.key in self.done or any(self._waits(cell, number) for number in range(count)):
            return
        parts = self._parts.get(cell.key, {})
        ordered = [parts[number] for number in range(count) if number in parts]
        reasons = [why for number, why in sorted(self._left_out.get(cell.key, {}).items()) if number not in parts]
        if not ordered:
            self.skip(cell, reasons[0])
            return
        result = cell_of(cell, ordered, self._bench.weight_bytes, self._bench.bandwidth)
        self._record(cell, _noted(result, reasons, count))

    def _record(self, cell: Planned, result: Cell) -> None:
        if cell.key in self.done:
            return
        self.done.add(cell.key)
        self._bench.folder.add_cell(cast("Mapping[str, Any]", result))
        self._left.over(cell)
        self._bench.say(f"  {cell.method.label} ({cell.protocol}): {_outcome(result)}")
        self._bench.told(result)


def _noted(cell: Cell, reasons: Sequence[str], count: int) -> Cell:
    """The cell, with a note on contexts that were left out of it."""
    if not reasons:
        return cell
    said = f"{len(reasons)} of {count} contexts are left out ({reasons[0]})"
    fields = cast("dict[str, Any]", cell)
    return cast(Cell, {**fields, "note": "; ".join(filter(None, (fields.get("note"), said)))})


def _outcome(cell: Cell) -> str:
    if cell.get("skipped"):
        return f"skipped: {cell['skipped']}"
    return f"failed: {cell['error']}" if cell.get("error") else f"score {cell['score']:.3f}"


def _named(cell: Planned) -> dict[str, Any]:
    task, length, protocol, method = cell.key
    return {"task": task, "length": length, "protocol": protocol, "method": method}


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
