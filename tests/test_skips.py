"""Skips that nobody expects fail a run, in a run of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from tests.skips import Skip, SkipCheck

def pytest_configure(config):
    config.pluginmanager.register(SkipCheck([Skip("needs wings", 2, lambda: True), Skip("no sea", 1, lambda: False)]))
"""
WINGS = "@pytest.mark.skipif(True, reason='needs wings')\ndef test_{}(): pass\n"


def run(folder: Path, tests: str, *arguments: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(f"import pytest\n\ndef test_runs(): pass\n{tests}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(
    ("tests", "arguments", "told"),
    [
        (WINGS.format("a") + WINGS.format("b"), (), "skipped 2: needs wings"),
        (WINGS.format("a"), ("test_it.py",), "skipped 1: needs wings"),
    ],
    ids=["all of them", "a part of the tests"],
)
def test_expected_skips_are_listed(tmp_path: Path, tests: str, arguments: tuple[str, ...], told: str) -> None:
    status, out = run(tmp_path, tests, *arguments)
    assert status == 0, out
    assert told in out


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ("def test_a(): pytest.skip('it rains')\n", "skipped unexpectedly: test_it.py::test_a: it rains"),
        ("def test_a(): pytest.skip('no sea')\n", "skipped unexpectedly: test_it.py::test_a: no sea"),
        ("pytest.importorskip('no_such_package')\n", "skipped unexpectedly: test_it.py: could not import"),
        (WINGS.format("a"), "skipped 1 tests and not 2: needs wings"),
        ("".join(WINGS.format(n) for n in "abc"), "skipped 3 tests and not 2: needs wings"),
    ],
    ids=["unknown reason", "holds elsewhere", "a whole file", "too few", "too many"],
)
def test_any_other_skip_fails_the_run(tmp_path: Path, tests: str, told: str) -> None:
    status, out = run(tmp_path, tests)
    assert status not in (0, pytest.ExitCode.USAGE_ERROR), out
    assert told in out
