"""Running `kvz`: in this process where that is enough, in one of its own where pipes or signals are meant."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
COMMAND = [sys.executable, "-m", "kvz.cli.main"]
TIMEOUT = 90


@dataclass(frozen=True)
class Outcome:
    """Exit status, and what came out on both streams."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """stdout as one JSON object a line."""
        return [json.loads(line) for line in self.text.splitlines()]

    def succeeded(self) -> Outcome:
        assert self.status == 0, self.err
        return self

    def failed(self, *words: str, status: int = 1) -> None:
        """Assert that nothing is on stdout, and that one line on stderr holds `words`."""
        assert self.status == status, self.err
        assert self.out == b""
        assert_one_line(self.err)
        assert [word for word in words if word not in self.err] == [], self.err


def assert_one_line(err: str) -> None:
    """An error is one line that begins with the program's name, and was expected."""
    assert err.startswith("kvz: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "unexpected" not in err
    assert len(err) < 700


def spawn(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `kvz` in a process of its own, its streams piped unless told otherwise."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
    return subprocess.Popen([*COMMAND, *arguments], **{**pipes, **options})


def react_to_interrupts() -> None:
    """As in a foreground process, whatever the tests were started from: a `preexec_fn`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[bytes]) -> Outcome:
    out, err = process.communicate(timeout=TIMEOUT)
    return Outcome(process.returncode, out or b"", (err or b"").decode())


class Endless(io.RawIOBase):
    """A pipe that never ends: `unit` again and again; `taken` counts its bytes."""

    def __init__(self, unit: bytes) -> None:
        self.unit = unit
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        whole = (self.unit * (len(buffer) // len(self.unit) + 1))[: len(buffer)]
        buffer[:] = whole
        self.taken += len(buffer)
        return len(buffer)


def endless_stdin(monkeypatch: pytest.MonkeyPatch, unit: bytes) -> Endless:
    """Make standard input one that never ends."""
    pipe = Endless(unit)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(pipe), encoding="utf-8"))
    return pipe
