"""What a file of head scores is called, and what kinds of scores there are. Imported without torch."""

from __future__ import annotations

from pathlib import Path

from kvz.errors import ScoringError, UsageError

__all__ = ["DUO", "KVZIP", "TABLE", "check_suffix", "check_there"]

KVZIP, DUO = "kvzip", "duoattention"
TABLE = ".tsv"


def check_suffix(path: Path) -> None:
    """Raise UsageError unless `path` names a kind of file that head scores are written to."""
    if path.suffix.lower() not in (TABLE, ".safetensors"):
        raise UsageError(f"head scores are written to a .safetensors or a .tsv file, not to {path}")


def check_there(path: Path) -> None:
    """Raise ScoringError unless `path` is a file."""
    if not path.is_file():
        raise ScoringError(
            f"{path} is no file of head scores" if path.exists() else f"no such file of head scores: {path}"
        )
