"""Every reason to skip tests, where it holds, and how many tests it skips; any other skip fails a run."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

__all__ = ["EXPECTED", "Skip", "SkipCheck"]

_CAN_MOUNT = 1 << 21  # CAP_SYS_ADMIN


@dataclass(frozen=True)
class Skip:
    """`count` tests are skipped for a reason that begins so, on machines where `holds` is true, and on no other."""

    reason: str
    count: int
    holds: Callable[[], bool]


def _has_gpu() -> bool:
    import torch  # not before it is needed: this file is quick to import

    return torch.cuda.is_available()


def _may_mount() -> bool:
    status = Path("/proc/self/status")
    rights = re.search(r"CapEff:\s*(\w+)", status.read_text()) if status.exists() else None
    return rights is not None and bool(int(rights[1], 16) & _CAN_MOUNT)


def _keeps_files_in_memory() -> bool:
    """Whether temporary files have no disk."""
    mounts = Path("/proc/mounts")
    folder = Path(tempfile.gettempdir()).resolve()
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    over = [(len(line[1]), line[2]) for line in lines if folder.is_relative_to(line[1])]
    return max(over, default=(0, ""))[1] in ("tmpfs", "ramfs")


def _other_typer() -> bool:
    page = Path(__file__).parent.parent / "docs" / "cli.md"
    return f"with typer {version('typer')};" not in page.read_text(encoding="utf-8")


EXPECTED = (
    Skip("needs a GPU", 7, lambda: not _has_gpu()),
    Skip("kernels are not interpreted where there is a GPU", 6, _has_gpu),
    Skip("not an x86 processor", 1, lambda: platform.machine() not in ("x86_64", "AMD64")),
    Skip("torch's compiler needs one for C++ on a CPU", 1, lambda: shutil.which("g++") is None),
    Skip("memory cannot be watched here", 5, lambda: platform.libc_ver()[0] != "glibc"),
    Skip("cannot mount a small file system here", 2, lambda: not _may_mount()),
    Skip("files are in memory here", 2, _keeps_files_in_memory),
    Skip("no posix_fadvise here", 2, lambda: not hasattr(os, "posix_fadvise")),
    Skip("there is no /dev/full", 2, lambda: not os.path.exists("/dev/full")),
    Skip("this file system has only UTF-8 names", 1, lambda: sys.platform == "darwin"),
    Skip("typer ", 1, _other_typer),
)


class SkipCheck:
    """A plugin of pytest that lists what was skipped, and fails the run where that is not what is expected.

    Counts are compared after whole runs; of a part of the tests, a reason must be known and hold here.
    """

    def __init__(self, expected: Sequence[Skip] = EXPECTED) -> None:
        self._expected = expected
        self._tests: dict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK and self._faults(session.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        for reason, tests in sorted(self._tests.items()):
            terminalreporter.write_line(f"skipped {len(tests)}: {reason} ({tests[0].partition('::')[0]})")
        for fault in self._faults(config):
            terminalreporter.write_line(f"{fault}; expected skips are in tests/skips.py", red=True)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self._tests[told.removeprefix("Skipped: ")].append(report.nodeid)

    def _faults(self, config: pytest.Config) -> list[str]:
        faults, counts = [], dict.fromkeys(self._expected, 0)
        for reason, tests in self._tests.items():
            known = next((skip for skip in self._expected if reason.startswith(skip.reason)), None)
            if known is None or not known.holds():
                faults.append(f"skipped unexpectedly: {tests[0]}: {reason}")
            else:
                counts[known] += len(tests)
        for skip, count in counts.items():
            wanted = skip.count if skip.holds() else 0
            if count > wanted or (_is_whole(config) and count != wanted):
                faults.append(f"skipped {count} tests and not {wanted}: {skip.reason}")
        return faults


def _is_whole(config: pytest.Config) -> bool:
    """Whether all tests were to run, to the end."""
    narrowing = ("keyword", "markexpr", "deselect", "lf", "maxfail", "collectonly")
    narrowed = any(config.getoption(option, None) for option in narrowing)
    return config.args_source is not pytest.Config.ArgsSource.ARGS and not narrowed
