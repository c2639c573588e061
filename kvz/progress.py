"""How long work tells what it is doing; the command line draws it, the Python API stays silent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Progress", "Timings"]


class Progress:
    """Receives phases and their advance. This one does nothing; `kvz.cli.console` has one that draws."""

    def say(self, message: str) -> None:
        """A line about something that takes a while, like a first download."""

    def start(self, phase: str, total: int, unit: str) -> None:
        """A phase of `total` units begins; it ends when the next one begins or `finish` is called."""

    def advance(self, units: int) -> None:
        """`units` more of the current phase are done."""

    def finish(self) -> None:
        """The last phase is over."""


@dataclass
class Timings:
    """Wall seconds of each phase, in the order they ran."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block under `name`; the same name again adds up."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
