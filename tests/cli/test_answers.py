"""What is said at a terminal before the first answer."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import kvz
from kvz.cli.answers import say_compiling
from kvz.config import Decoding
from kvz.models.language_model import LanguageModel
from kvz.progress import Progress


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


class Said(Progress):
    """Notes what is said."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def say(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.parametrize(
    ("decoding", "compiles"),
    [
        (Decoding(), True),
        (Decoding("lowbit", 16), True),
        (Decoding("sparq", 16), False),
        (Decoding("sparq", 999), True),
    ],
)
def test_kernels_are_said_to_be_compiled_where_there_are_some(
    archive: Path, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, decoding: Decoding, compiles: bool
) -> None:
    session, said = kvz.load(archive).session(tiny, decoding), Said()
    say_compiling(session, said)
    monkeypatch.setattr("sys.stderr", Terminal())
    say_compiling(session, said)
    assert len(said.messages) == compiles
