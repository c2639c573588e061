"""The config.json of a run: what it must hold, so that no other file of that name is taken for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kvz.errors import UsageError

__all__ = ["CONFIG", "check_config", "is_run", "read_config"]

CONFIG = "config.json"


class _File(Struct):
    name: str
    sha256: str


class _Config(Struct):
    kvz: str
    model: str
    fingerprint: str
    dtype: str
    device: str
    tasks: list[str]
    methods: list[str]
    lengths: list[int]
    samples: dict[str, int]
    seed: int
    protocol: str
    data: _File | None
    texts: _File | None
    tokenizer: str = ""
    chat_template: str | None = None
    head_scores: dict[str, str] = {}
    template: str | None = None
    metrics: dict[str, str] = {}
    """What scores each task, which a file's name can decide; runs made before it was written have none."""


def check_config(config: dict[str, Any]) -> None:
    """Raise ValueError, saying what is wrong, unless these are the settings of a run."""
    msgspec.convert(config, _Config)


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    try:
        read_config(folder)
    except UsageError:
        return False
    return True


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of the run in a folder. Raises UsageError if it holds none, or one whose settings are damaged."""
    path = folder / CONFIG
    try:
        config = msgspec.json.decode(path.read_bytes())
        check_config(config)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} holds no run of kvz bench") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{folder} holds no run of kvz bench: its {CONFIG} is not a run's ({reason})") from None
    return dict(config)
