"""kvz inspect --html: an archive as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvz import wording
from kvz.cli import console
from kvz.cli.targets import check_output
from kvz.errors import OutputError, UsageError
from kvz.format.atomic import atomic_file
from kvz.format.reader import ArchiveFile
from kvz.progress import Progress

if TYPE_CHECKING:
    from kvz.archive import Archive

__all__ = ["find_target", "write_html"]

_MOST_TOKENS = 4_000_000  # a page of more is larger than browsers open; and without text nothing confirms the number


def write_html(opened: ArchiveFile, facts: dict[str, str], target: Path | None, model: str | None, force: bool) -> None:
    """Write the page of an archive to `target`, None for stdout.

    The archive's checksums are checked. Raises OutputError, CorruptArchive, and ModelError or ArchiveMismatch where
    `model`, if given, cannot decode the text.
    """
    from kvz.archive import load
    from kvz.report.archive_page import archive_page

    archive = load(opened.path)
    texts, no_text = _texts(archive, model, console.terminal_progress(quiet=False))
    shown = {name: wording.printable(value) for name, value in facts.items()}
    page = archive_page(archive, shown, texts, no_text).encode()
    archive.check_unchanged()
    if target is None:
        _write_to_stdout(page)
        return
    with atomic_file(target, force) as file:
        file.write(page)
    console.note(f"{target}: {wording.size(len(page))}" + (", without the text" if texts is None else ""))


def _check_length(tokens: int) -> None:
    if tokens > _MOST_TOKENS:
        held, most = wording.quantity(tokens), wording.quantity(_MOST_TOKENS)
        raise UsageError(f"a page shows {most} tokens at most, and the document has {held}; leave --html out")


def find_target(opened: ArchiveFile, output: str, force: bool) -> Path | None:
    """The file to write for `output`, None for stdout. Raises UsageError or OutputError where no page can go."""
    _check_length(opened.manifest.prompt.context_tokens)
    if output == "-":
        if sys.stdout is None:
            raise OutputError("standard output is closed; give --html a file")
        return None
    if not output.strip():
        raise UsageError("--html is empty; give a file name, or - for stdout")
    target = Path(output)
    if target.exists() and target.samefile(opened.path):
        raise UsageError(f"{output} is the archive itself; give --html another name")
    check_output(target, force, "for a pipe give --html -")
    return target


def _texts(archive: Archive, model: str | None, progress: Progress) -> tuple[list[str] | None, str]:
    """Text of each context token; or None and why there is none."""
    from kvz.cli.archive_tokenizer import find_tokenizer
    from kvz.report.token_runs import texts_of

    if archive.token_ids is None:
        return None, "The archive was made without its token ids (--omit-text), so there is no text to show."
    ids = archive.token_ids[archive.manifest.prompt.prefix_tokens :].tolist()
    tokenizer, reason = find_tokenizer(archive.manifest, ids, model, progress)
    return (None, f"The text is left out: {reason}.") if tokenizer is None else (texts_of(tokenizer, ids), "")


def _write_to_stdout(page: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(page)
    sys.stdout.buffer.flush()
