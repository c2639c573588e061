"""What the compiler makes of every launch of every GPU kernel, for A100 and H100, on a machine without either.

Run by `scripts/bench kernels`. It times nothing: it shows what is known of a kernel before it has run, registers a
thread, shared memory, spills, the width of loads, and whether products are done by tensor cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kvz.bench.pages import fill_place
from kvz.cli.console import emit, note
from kvz.errors import UsageError

if TYPE_CHECKING:
    from kvz.kernels.triton.launch import Compiled, Launch

__all__ = ["CHIPS", "Row", "compile_all", "main", "markdown"]

_SAID = ("D", "GROUP", "STAGES")
CHIPS = {80: "A100 (sm_80)", 90: "H100 (sm_90)"}


@dataclass(frozen=True)
class Row:
    """One launch on one chip. Bytes, registers a thread, bits of the widest load; `faults` names what it fails at."""

    kernel: str
    configuration: str
    chip: int
    registers: int
    shared: int
    spilled: int
    wide: int
    tensor_cores: bool
    faults: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile and print; `--json` and `--docs` write the numbers, and the table at `<!-- kernels -->` of a page."""
    parser = argparse.ArgumentParser(prog="scripts/bench kernels", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default %(default)s)")
    parser.add_argument("--json", type=Path, default=None, help="also write the numbers to this file")
    parser.add_argument("--docs", type=Path, default=None, help="put the tables into this page, at <!-- kernels -->")
    options = parser.parse_args(arguments)
    try:
        rows = compile_all(options.jobs)
    except UsageError as error:
        parser.error(str(error))
    lines = markdown(rows)
    for line in lines:
        emit(line)
    if options.json:
        result = {"triton": version("triton"), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.docs:
        fill_place(options.docs, "kernels", lines)


def compile_all(jobs: int = 1) -> list[Row]:
    """Every launch for every chip, in `jobs` processes.

    Raises UsageError if TRITON_INTERPRET is set or there is no Triton here, Triton's CompilationError if a launch does
    not compile.
    """
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise UsageError("TRITON_INTERPRET is set, so kernels would be interpreted and not compiled: unset it")
    try:
        count = len(_launches())
    except ImportError as error:
        raise UsageError(f"kernels are compiled by Triton, which is not installed here: {error}") from error
    tasks = [(index, chip) for chip in CHIPS for index in range(count)]
    if jobs <= 1:
        return [_compiled(task) for task in tasks]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context) as pool:
        return list(pool.map(_compiled, tasks, chunksize=4))


def markdown(rows: Iterable[Row]) -> list[str]:
    """A table, a row for each launch; what differs is given as that of one chip / that of the other."""
    of_launch: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        of_launch.setdefault((row.kernel, row.configuration), []).append(row)
    chips = " / ".join(CHIPS.values())
    return [
        f"Triton {version('triton')}; {chips}. Registers are a thread's, shared memory a program's: {_limits()}.",
        "",
        "| kernel | configuration | registers | shared, KiB | spilled, bytes | widest load, bits | tensor cores |",
        "|---|---|--:|--:|--:|--:|---|",
        *(_line(kernel, configured, own) for (kernel, configured), own in of_launch.items()),
    ]


def _line(kernel: str, configured: str, rows: list[Row]) -> str:
    cells = [
        (row.registers, f"{row.shared / 1024:.1f}", row.spilled, row.wide, "yes" if row.tensor_cores else "no")
        for row in rows
    ]
    return f"| {kernel} | {configured} | " + " | ".join(_each(column) for column in zip(*cells, strict=True)) + " |"


def _each(values: Iterable[object]) -> str:
    """A value for each chip, once if they are the same."""
    return " / ".join(dict.fromkeys(str(value) for value in values))


def _limits() -> str:
    from kvz.kernels.triton.launch import SHARED_BYTES

    return " and ".join(f"{SHARED_BYTES[chip] >> 10} KiB at most on {name}" for chip, name in CHIPS.items())


def _launches() -> list[Launch]:
    from kvz.kernels.triton.catalogue import all_launches

    return list(all_launches())


def _compiled(task: tuple[int, int]) -> Row:
    """Compile the launch of an index for a chip."""
    from kvz.kernels.triton.launch import compile_launch

    index, chip = task
    launch = _launches()[index]
    note(f"sm_{chip}: {launch.name}")
    made = compile_launch(launch, chip)
    return Row(launch.name, configuration(launch), chip, **asdict(made), faults=_faults(launch, chip, made))


def configuration(launch: Launch) -> str:
    """Its constants that are numbers and not in its name, warps and stages: `KEYS 128, ROWS 64, 8 warps, 2 stages`."""
    constants = [
        f"{name} {value}"
        for name, value in launch.constants.items()
        if isinstance(value, int) and not isinstance(value, bool) and name.isupper() and name not in _SAID
    ]
    return ", ".join([*constants, f"{launch.warps} warps", f"{launch.stages} stages"])


def _faults(launch: Launch, chip: int, made: Compiled) -> tuple[str, ...]:
    from kvz.kernels.triton.launch import SHARED_BYTES

    found = {
        f"{made.spilled} bytes of registers are spilled": made.spilled > 0,
        f"{made.shared} bytes of shared memory, more than {SHARED_BYTES[chip]}": made.shared > SHARED_BYTES[chip],
        f"no load is wider than {made.wide} bits": launch.wide and made.wide < 128,
        "products are not done by tensor cores": launch.products and not made.tensor_cores,
    }
    return tuple(fault for fault, there in found.items() if there)


if __name__ == "__main__":
    main()
