"""Ctrl-C and SIGTERM: exit status 130, nothing half-written, the terminal as it was."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import ENVIRONMENT, TIMEOUT, finish, react_to_interrupts, spawn
from tests.tiny import make_model_folder

SHOW_CURSOR = b"\x1b[?25h"


@pytest.fixture(scope="module")
def slow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes some seconds over the document below."""
    return make_model_folder(tmp_path_factory.mktemp("slow"), layers=16, max_position_embeddings=16384)


@pytest.fixture
def command(slow_folder: Path, tmp_path: Path, out: Path) -> list[str]:
    document = tmp_path / "long.txt"
    document.write_text("All work and no play makes Jack a dull boy. " * 140)
    (out / "a.kvz").write_bytes(b"old")
    return ["compress", str(document), "-m", str(slow_folder), "--dtype", "float32", "-f", "-o", str(out / "a.kvz")]


class Terminal:
    """A terminal to give to a process as stderr."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.seen = b""

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + TIMEOUT
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self.read(0.5)

    def read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], seconds)
        if ready:
            self.seen += os.read(self.master, 1 << 16)
        return bool(ready)

    def read_all(self) -> bytes:
        while self.read(0.1):
            pass
        return self.seen


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    os.close(opened.master)
    os.close(opened.slave)


@pytest.mark.parametrize(("number", "phase"), [(signal.SIGINT, b"score"), (signal.SIGTERM, b"prefill")])
def test_a_signal_while_compressing(
    command: list[str], terminal: Terminal, out: Path, number: signal.Signals, phase: bytes
) -> None:
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100"}
    process = spawn(*command, stderr=terminal.slave, env=environment, preexec_fn=react_to_interrupts)
    try:
        terminal.wait_for(phase)
        process.send_signal(number)
        outcome = finish(process)
    finally:
        process.kill()
    shown = terminal.read_all()
    assert outcome.status == 130
    assert outcome.out == b""
    assert b"Traceback" not in shown
    assert shown.rstrip().endswith(b"kvz: interrupted")
    assert shown.count(b"\x1b[?25l") == shown.count(SHOW_CURSOR)
    assert os.listdir(out) == ["a.kvz"]
    assert (out / "a.kvz").read_bytes() == b"old"


def test_a_signal_while_answering(archive: Path) -> None:
    process = spawn("ask", str(archive), *["Who?"] * 2000, "-q", preexec_fn=react_to_interrupts)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    outcome = finish(process)
    assert outcome.status == 130
    assert outcome.err == "kvz: interrupted\n"


INTERRUPT = "os.kill(os.getpid(), int(path)); time.sleep(10)"
WAYS = {
    "raised": INTERRUPT,
    "raised inside exec": f"exec({INTERRUPT!r})",
    "turned into another error": f"""
    try:
        {INTERRUPT}
    except KeyboardInterrupt as error:
        raise ModuleNotFoundError("half a module") from error
    """,
    "swallowed, and another error follows": f"""
    try:
        {INTERRUPT}
    except KeyboardInterrupt:
        pass
    raise RecursionError("half a module")
    """,
}
INSPECT = """
import os, time
import kvz.cli.inspect
from kvz.cli.main import main

def open_archive(path):
    {}

kvz.cli.inspect.open_archive = open_archive
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_signal_whatever_a_library_makes_of_it(tmp_path: Path, number: signal.Signals, way: str) -> None:
    """An import that is cut short does all of this."""
    (tmp_path / "inspect_and_interrupt.py").write_text(INSPECT.format(way))
    command = [sys.executable, "-m", "inspect_and_interrupt", "inspect", str(int(number))]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
        preexec_fn=react_to_interrupts,
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "kvz: interrupted\n")
