"""kvz bench: methods compared on tasks; a run is a folder, and goes on where it was interrupted."""

from __future__ import annotations

import datetime
import math
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from kvz import wording
from kvz.cli import console
from kvz.cli.bench_report import report_runs, say_more, show, write
from kvz.cli.options import DeviceOption, JsonOption, ModelOption, QuietOption
from kvz.cli.signals import InterruptHandler
from kvz.cli.value_lists import names_of, number_of, whole_of
from kvz.errors import UsageError
from kvz.models.placement import check_placement
from kvz.models.source import check_model

if TYPE_CHECKING:
    from kvz.bench.settings import Settings

__all__ = ["bench"]

_REPORTING = ("report", "out", "as_json", "quiet")  # parameters that `report` takes

# Optional[...] is evaluated by typer.
Names = Optional[list[str]]  # noqa: UP045
Text = Optional[str]  # noqa: UP045
Place = Optional[Path]  # noqa: UP045
_REPEATED = "repeated, or separated by commas"


def bench(
    context: typer.Context,
    report: Annotated[
        Names,
        typer.Argument(
            metavar="report RUN", help="Show runs that were made before, several side by side; measure nothing."
        ),
    ] = None,
    task: Annotated[
        Names, typer.Option("--task", metavar="NAMES", help=f"Tasks, {_REPEATED}. [default: a quick run of two]")
    ] = None,
    method: Annotated[
        Names,
        typer.Option(
            "--method",
            metavar="NAMES",
            help="full, default, kvzip, kvzip-uniform, kvzip-head, kvzip+, snapkv, pyramidkv, adakv, h2o, duo, "
            "rocketkv, rocketkv-mt, exact-topk, quest, sparq, hsa, lowbit; or COMPRESS@RATIO/POLICY@BUDGET, such as "
            f"kvzip@0.3/hsa@256; {_REPEATED}. The full cache is always among them.",
        ),
    ] = None,
    ratio: Annotated[
        Names,
        typer.Option("--ratio", "-r", metavar="RATIOS", help="Shares kept by methods that compress. [default: 0.3]"),
    ] = None,
    budget: Annotated[
        Names,
        typer.Option(
            "--budget",
            metavar="NUMBERS",
            help="Pairs of a head that a step reads, for methods that read sparsely; without --ratio also the pairs a "
            "head that others keep. [default: 256]",
        ),
    ] = None,
    length: Annotated[
        Names, typer.Option("--length", metavar="NUMBERS", help="Tokens of context. [default: 2000, quick: 1000]")
    ] = None,
    samples: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="Contexts of each task and length. [default: 10; quick: a few]"),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Which contexts.")] = 0,
    protocol: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="single-shot (the question is seen at compression), multi-query (it is not), multi-turn (one "
            "conversation); auto: the task's own, and single-shot for methods that need a question.",
        ),
    ] = "auto",
    data: Annotated[Place, typer.Option(metavar="FILE", help="The file of a task that is read from one.")] = None,
    texts: Annotated[
        Place, typer.Option(metavar="DIR", help=".txt files to hide things in, in place of the examples.")
    ] = None,
    template: Annotated[
        Text,
        typer.Option(
            metavar="NAME", help="Wording of a file's questions: plain, short-answer, longbench, step-by-step."
        ),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    out: Annotated[
        Text,  # a path would take an empty one for the current folder
        typer.Option(
            "--out", "-o", metavar="DIR", help="The run's folder; one that is there goes on. [default: a new one]"
        ),
    ] = None,
    as_json: JsonOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells with an estimate of their time.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few and short contexts; what is done without --task.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Start anew in place of another run.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Compare methods with the full cache on tasks: scores, agreement, bytes, times.

    A table goes to stdout, everything else into the run's folder: settings, a line for each cell, tables, pictures and
    report.html.
    """
    if out is not None and not out.strip():
        raise UsageError("--out is empty; give the name of a folder")
    target = None if out is None else Path(out)
    if report:
        _refuse_measuring(context)
        report_runs(report, target, as_json, quiet)
        return
    if force and out is None:
        raise UsageError("--force starts anew in the folder of --out, which is not given")
    from kvz.bench.run_folder import check_folder
    from kvz.bench.settings import make_settings

    settings = make_settings(
        tasks=names_of(task),
        methods=names_of(method),
        ratios=[number_of(value, "--ratio") for value in names_of(ratio)],
        budgets=[whole_of(value, "--budget") for value in names_of(budget)],
        lengths=[whole_of(value, "--length") for value in names_of(length)],
        samples=samples,
        seed=seed,
        protocol=protocol,
        data=data,
        texts=texts,
        template=template,
        quick=quick,
    )
    check_placement(device, dtype)
    check_model(model)
    if target is not None:
        check_folder(target)
    if dry_run:
        _list(settings, model, device, dtype, as_json, quiet)
        return
    if _run(settings, model, device, dtype, target, force, as_json, quiet):
        raise typer.Exit(1)


def _run(
    settings: Settings, name: str | None, device: str, dtype: str, out: Path | None, force: bool, as_json: bool,
    quiet: bool,
) -> int:  # fmt: skip
    """Measure and report; how many cells failed, all of them where nothing could be measured."""
    from kvz.bench.start import start_run
    from kvz.bench.write_report import results_of
    from kvz.models.language_model import load_model

    say = (lambda message: None) if quiet else console.note
    model = load_model(name, device, dtype, console.terminal_progress(quiet).say)
    for left_out, first in settings.same.items():
        say(f"kvz: {left_out} is {first} by another name, and is measured once")
    path = _new_folder() if out is None else out
    with start_run(settings, model, path, force) as run:
        for line in run.folder.corrupt:
            say(f"kvz: {line}")
        if run.folder.cells or run.folder.samples:
            parts = f"{len(run.folder.samples)} contexts of cells"
            say(f"kvz: going on with {path}: {len(run.folder.cells)} of {len(run.plan)} cells are there, {parts}")
        if as_json:
            for cell in run.folder.cells:
                console.emit_json(cell)
        told = console.emit_json if as_json else (lambda cell: None)
        try:
            run.measure(say, told, _interrupted)
        except (KeyboardInterrupt, BrokenPipeError):
            say(f"kvz: {len(run.folder.cells)} of {len(run.plan)} cells are in {path}; --out {path} goes on")
            write(path, results_of(path), None)
            raise
        results = results_of(path)
        try:  # both, though there may be no room for the one or no reader of the other
            if not as_json:
                show(results)
        finally:
            write(path, results, None)
    say_more(say)
    say(f"kvz: the run is in {path}; open {path / 'report.html'}")
    if not any("score" in cell for cell in results.cells):
        say("kvz: nothing was measured; the reasons are above")
        return len(results.cells)
    return sum("error" in cell for cell in results.cells)


def _list(settings: Settings, name: str | None, device: str, dtype: str, as_json: bool, quiet: bool) -> None:
    """The cells and their estimated seconds."""
    from kvz.bench.start import estimated

    cells = estimated(settings, name, device, dtype, console.terminal_progress(quiet).say)
    for cell in cells:
        if as_json:
            console.emit_json(cell)
        else:
            end = (
                f"skipped: {cell['skipped']}"
                if cell["skipped"]
                else f"{wording.quantity(math.ceil(cell['estimated_seconds']))} s"
            )
            shown = f"{cell['task']}, {cell['length']:,} tokens, {cell['protocol']}, {cell['method']}"
            console.emit(f"{shown}: {end}")
    total = sum(cell["estimated_seconds"] for cell in cells)
    if not quiet:
        console.note(f"{len(cells)} cells, about {total:.0f} s ({total / 60:.1f} min)")


def _new_folder() -> Path:
    from kvz.format.atomic import is_taken

    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    names = (f"kvz-bench-{stamp}{end}" for end in ("", *(f"-{number}" for number in range(2, 100))))
    return next(path for path in map(Path, names) if not is_taken(path))


def _interrupted() -> bool:
    handler = signal.getsignal(signal.SIGTERM)
    return isinstance(handler, InterruptHandler) and bool(handler.received)


def _refuse_measuring(context: typer.Context) -> None:
    """Raise UsageError for options that a report has no use for."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in _REPORTING:
            raise UsageError(f"{parameter.opts[0]} is for measuring, and a report measures nothing; leave it out")
