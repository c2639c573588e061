"""A run on disk: its settings, a line for each cell and each context as it is measured, and what it was made on.

    config.json        what is measured; a run goes on only with the same
    cells.jsonl        a cell a line, complete
    samples.jsonl      a line for each context of each cell: what cells are made of, with the answers
    environment.json   machine and versions of each start

Lines are flushed and synced one by one; those that cannot be used are dropped when the run goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kvz.bench.methods import FULL, REPEAT_KV
from kvz.bench.plan import Key, key_of
from kvz.bench.report_files import remove_report
from kvz.bench.run_config import CONFIG, is_run, read_config
from kvz.bench.run_lines import CELLS, ENVIRONMENT, SAMPLES, Lines, environments, good_cells, good_samples
from kvz.errors import OutputError, UsageError
from kvz.format.atomic import atomic_file, output_error

__all__ = ["RunFolder", "check_folder", "read_run"]

_LOCK = ".lock"
_OF_RESULTS = ("machine", "device", "kvz", "commit")  # what results and times can depend on, of a start


class RunFolder:
    """The folder of a run that is being made: `cells` and `samples` are the good lines of it.

    `corrupt` says which lines were dropped, and why. Closed by leaving its context.
    """

    def __init__(
        self, path: Path, config: Mapping[str, Any], anew: bool = False, planned: Mapping[Key, int] | None = None
    ) -> None:
        """Start a run, go on with one of the same `config`, or start `anew` in its place.

        Lines of cells that are not `planned`, or of more contexts than are planned of a cell, are dropped.

        Raises UsageError if the folder holds something else than a run, or another run that is not to be replaced, and
        OutputError if it cannot be written or another process uses it.
        """
        self.path = path
        self.corrupt: list[str] = []
        check_folder(path)
        self._lock = _locked(path)
        try:
            self._open(config, anew, planned)
        except OSError as error:
            self.close()
            raise output_error(path, error) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes use it."""
        self._lock.release()

    def add_cell(self, cell: Mapping[str, Any]) -> None:
        """Append a cell. Raises OutputError."""
        self.cells.append(dict(cell))
        self._append(CELLS, cell)

    def add_sample(self, part: Mapping[str, Any]) -> None:
        """Append what one context gave. Raises OutputError."""
        self.samples.append(dict(part))
        self._append(SAMPLES, part)

    def add_environment(self, environment: Mapping[str, Any]) -> None:
        """Note what the run is made on from here on."""
        starts = environments(self.path).good
        _write(self.path / ENVIRONMENT, [*starts, dict(environment)])

    def differences(self, environment: Mapping[str, Any]) -> list[str]:
        """In what the last start was made on something else than a new one in this `environment`; empty at first."""
        starts = environments(self.path).good
        last = starts[-1] if starts else environment
        return [
            f"{name} was {_shown(last.get(name))} before and is {_shown(environment.get(name))}"
            for name in _OF_RESULTS
            if last.get(name) != environment.get(name)
        ]

    def _open(self, config: Mapping[str, Any], anew: bool, planned: Mapping[Key, int] | None) -> None:
        wanted = json.loads(json.dumps(config))
        check_folder(self.path)
        if anew:
            for name in (CELLS, SAMPLES, ENVIRONMENT):
                (self.path / name).unlink(missing_ok=True)
            remove_report(self.path)
        elif is_run(self.path):
            _compare(self.path, read_config(self.path), wanted)
        if anew or not is_run(self.path):
            _write(self.path / CONFIG, wanted)
        self.cells = self._kept(CELLS, good_cells(self.path, lambda line: planned is None or key_of(line) in planned))
        self.samples = self._kept(
            SAMPLES,
            good_samples(self.path, lambda line: planned is None or line["sample"] < planned.get(key_of(line), 0)),
        )
        self.corrupt += environments(self.path).bad

    def _kept(self, name: str, lines: Lines) -> list[dict[str, Any]]:
        """The good lines of a file; the others are taken out of it."""
        if lines.bad:
            self.corrupt += lines.bad
            with atomic_file(self.path / name, overwrite=True) as file:
                file.writelines(_line(line) for line in lines.good)
        return lines.good

    def _append(self, name: str, value: Mapping[str, Any]) -> None:
        path = self.path / name
        try:
            with path.open("ab") as file:
                file.write(_line(value))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise output_error(path, error) from error


def read_run(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The settings of a run, its cells, its environments, and the lines that cannot be used. Raises UsageError."""
    config = read_config(path)
    methods = {FULL.label, REPEAT_KV.label, *config["methods"]}

    def belongs(line: Mapping[str, Any]) -> bool:
        task, length, _, method = key_of(line)
        return task in config["samples"] and length in config["lengths"] and method in methods

    cells, starts = good_cells(path, belongs), environments(path)
    return config, cells.good, starts.good, [*cells.bad, *starts.bad]


def check_folder(path: Path) -> None:
    """Raise UsageError for a file, and for a folder with something in it that is not a run: that is not for us."""
    if path.is_file():
        raise UsageError(f"{path} is a file; --out is a folder")
    try:
        if not path.is_dir() or all(item.name == _LOCK for item in path.iterdir()):
            return
        read_config(path)
    except UsageError as error:
        raise UsageError(f"{error}, and is not empty; give another --out") from None
    except OSError as error:
        raise output_error(path, error) from error


def _locked(path: Path) -> FileLock:
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / _LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise OutputError(f"another process is running the benchmark in {path}; give another --out") from None
    except FileExistsError:
        raise UsageError(f"{path} is a file; --out is a folder") from None
    except OSError as error:
        raise output_error(path, error) from error
    return lock


def _compare(path: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = [name for name in sorted({*there, *wanted}) if there.get(name) != wanted.get(name)]
    if differing:
        said = "; ".join(
            f"{name} {_shown(there.get(name))} there, {_shown(wanted.get(name))} here" for name in differing
        )
        raise UsageError(f"{path} holds another run: {said}; give another --out, or -f to start anew")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n").encode()


def _write(path: Path, value: Any) -> None:
    with atomic_file(path, overwrite=True) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode())
