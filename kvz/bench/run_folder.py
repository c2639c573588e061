"""A run on disk: its settings, a line for each cell and each context as it is measured, and what it was made on.

    config.json        what is measured; a run goes on only with the same
    cells.jsonl        a cell a line, complete
    samples.jsonl      a line for each context of each cell: what cells are made of, with the answers
    environment.json   machine and versions of each start

Lines are flushed and synced one by one; a line that a kill cut short is dropped when the run goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kvz.bench.run_config import CONFIG, is_run, read_config
from kvz.errors import OutputError, UsageError
from kvz.format.atomic import atomic_file, output_error

__all__ = ["RunFolder", "read_run"]

_CELLS, _SAMPLES, _ENVIRONMENT = "cells.jsonl", "samples.jsonl", "environment.json"
_LOCK = ".lock"
_CELL = ("task", "length", "protocol", "method")
_RESULTS = ("score", "skipped", "error")


class RunFolder:
    """The folder of a run that is being made: `cells` and `samples` are the good lines of it.

    `corrupt` says which lines were dropped. Closed by leaving its context.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], anew: bool = False) -> None:
        """Start a run, go on with one of the same `config`, or start `anew` in its place.

        Raises UsageError if the folder holds something else than a run, or another run that is not to be replaced, and
        OutputError if it cannot be written or another process uses it.
        """
        self.path = path
        self.corrupt: list[str] = []
        _check_ours(path)
        self._lock = _locked(path)
        try:
            self._open(config, anew)
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
        self._append(_CELLS, cell)

    def add_sample(self, part: Mapping[str, Any]) -> None:
        """Append what one context gave. Raises OutputError."""
        self.samples.append(dict(part))
        self._append(_SAMPLES, part)

    def add_environment(self, environment: Mapping[str, Any]) -> None:
        """Note what the run is made on from here on."""
        starts = _environments(self.path)
        _write(self.path / _ENVIRONMENT, [*starts, dict(environment)])

    def _open(self, config: Mapping[str, Any], anew: bool) -> None:
        wanted = json.loads(json.dumps(config))
        _check_ours(self.path)
        if anew:
            for name in (_CELLS, _SAMPLES, _ENVIRONMENT):
                (self.path / name).unlink(missing_ok=True)
        elif is_run(self.path):
            _compare(self.path, read_config(self.path), wanted)
        if anew or not is_run(self.path):
            _write(self.path / CONFIG, wanted)
        self.cells = self._good_lines(_CELLS, lambda line: any(name in line for name in _RESULTS))
        self.samples = self._good_lines(_SAMPLES, lambda line: "sample" in line and "scores" in line)

    def _good_lines(self, name: str, is_good: Any) -> list[dict[str, Any]]:
        """The lines of a file that can be used; the others are taken out of it."""
        path = self.path / name
        good, bad = _lines(path, is_good)
        if bad:
            self.corrupt += [f"{name}, line {number}" for number in bad]
            with atomic_file(path, overwrite=True) as file:
                file.writelines(_line(line) for line in good)
        return good

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
    """The settings of a run, its cells, its environments, and the lines that cannot be read. Raises UsageError."""
    config = read_config(path)
    cells, bad = _lines(path / _CELLS, lambda line: any(name in line for name in _RESULTS))
    return config, cells, _environments(path), [f"{_CELLS}, line {number}" for number in bad]


def _check_ours(path: Path) -> None:
    """Raise UsageError if a folder has something in it that is not a run: its files are not for us to replace."""
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


def _environments(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads((path / _ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _lines(path: Path, is_good: Any) -> tuple[list[dict[str, Any]], list[int]]:
    """The good lines of a file, and the numbers of the others."""
    good, bad = [], []
    content = path.read_bytes() if path.exists() else b""
    for number, raw in enumerate(content.splitlines(keepends=True), 1):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            line = None
        whole = raw.endswith(b"\n") and isinstance(line, dict)
        if whole and all(name in line for name in _CELL) and is_good(line):
            good.append(line)
        else:
            bad.append(number)
    return good, bad


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n").encode()


def _write(path: Path, value: Any) -> None:
    with atomic_file(path, overwrite=True) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode())
