"""Everything that prints: answers plainly to stdout; progress, statistics and messages to stderr."""

from __future__ import annotations

import codecs
import json
import sys
from typing import Any

from kvz.errors import OutputError
from kvz.progress import Progress
from kvz.wording import printable, size

__all__ = [
    "TerminalProgress",
    "bar",
    "emit",
    "emit_json",
    "note",
    "terminal_progress",
]


def emit(text: str, end: str = "\n") -> None:
    """Write an answer, or a piece of one, to stdout at once; never wrapped, never styled, harmless to a terminal."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    shown = printable(text, "\n\t") if sys.stdout.isatty() else text
    sys.stdout.write(shown + end)
    sys.stdout.flush()


def emit_json(value: dict[str, Any]) -> None:
    """One JSON object on one line of stdout."""
    text = json.dumps(value, ensure_ascii=False)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        plain = codecs.lookup(encoding).name == "utf-8" and bool(text.encode())
    except (UnicodeEncodeError, LookupError):
        plain = False
    emit(text if plain else json.dumps(value))


def note(message: str) -> None:
    """A line on stderr, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(printable(message, "\n\t") + "\n")
        sys.stderr.flush()


def bar(share: float, width: int = 30) -> str:
    """A share in 0..1 as a bar of eighth blocks."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).rstrip()


def terminal_progress(quiet: bool) -> Progress:
    """Progress that draws if stderr is a terminal, else one that only passes on messages, or not even those."""
    if quiet:
        return Progress()
    return TerminalProgress() if sys.stderr is not None and sys.stderr.isatty() else MessageProgress()


class MessageProgress(Progress):
    """No bars, but messages about things that take long."""

    def say(self, message: str) -> None:
        note(f"kvz: {message}")


class TerminalProgress(MessageProgress):
    """A bar for each phase on stderr, with its rate; gone when the phase is over."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}% {task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None
        self._unit = ""

    def start(self, phase: str, total: int, unit: str) -> None:
        self.finish()
        self._unit = unit
        self._task = self._bars.add_task(phase, total=total, rate="")
        self._bars.start()

    def advance(self, units: int) -> None:
        if self._task is None:
            return
        self._bars.advance(self._task, units)
        task = self._bars.tasks[-1]
        if task.elapsed:
            rate = task.completed / task.elapsed
            shown = f"{size(rate)}/s" if self._unit == "B" else f"{rate:,.0f} {self._unit}/s"
            self._bars.update(self._task, rate=shown)

    def finish(self) -> None:
        if self._task is not None:
            self._bars.stop()
            self._bars.remove_task(self._task)
            self._task = None
