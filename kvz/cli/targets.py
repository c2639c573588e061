"""The file that an option names for output: what is wrong with it, in the words of the command line."""

from __future__ import annotations

from pathlib import Path

from kvz.errors import OutputError

__all__ = ["check_output"]


def check_output(path: Path, force: bool, instead: str = "give another name") -> None:
    """Raise OutputError if a file cannot be written; `instead` is what to do about one that is a pipe or a device."""
    from kvz.format.atomic import check_target, is_taken, output_error

    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OutputError(f"{path} is not a regular file and cannot be replaced; {instead}")
        if is_taken(path) and not path.is_dir() and not force:
            raise OutputError(f"{path} exists; give --force to replace it")
    except (OSError, ValueError) as error:
        raise output_error(path, error) from error
    check_target(path, force)
