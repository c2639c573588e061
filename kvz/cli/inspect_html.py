"""kvz inspect --html: an archive as a page."""

from __future__ import annotations

import sys
from pathlib import Path

from kvz import wording
from kvz.archive import Archive, load
from kvz.cli import console
from kvz.cli.archive_tokenizer import find_tokenizer
from kvz.cli.targets import check_output
from kvz.errors import OutputError, UsageError
from kvz.format.atomic import atomic_file
from kvz.format.reader import ArchiveFile
from kvz.progress import Progress
from kvz.report.archive_page import archive_page
from kvz.report.token_runs import texts_of

__all__ = ["write_html"]

_MOST_TOKENS = 4_000_000  # a page of more is larger than browsers open; and without text nothing confirms the number


def write_html(opened: ArchiveFile, facts: dict[str, str], output: str, model: str | None, force: bool) -> None:
    """Write the page of an archive to `output`, "-" for stdout.

    The archive's checksums are checked. Raises UsageError or OutputError where the page cannot go, CorruptArchive, and
    ModelError or ArchiveMismatch where `model`, if given, cannot decode the text.
    """
    _check_length(opened.manifest.prompt.context_tokens)
    target = _target(opened, output, force)
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


def _target(opened: ArchiveFile, output: str, force: bool) -> Path | None:
    """The file to write, None for stdout; told before the archive is read."""
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
    if archive.token_ids is None:
        return None, "The archive was made without its token ids (--omit-text), so there is no text to show."
    ids = archive.token_ids[archive.manifest.prompt.prefix_tokens :].tolist()
    tokenizer, reason = find_tokenizer(archive.manifest, ids, model, progress)
    return (None, f"The text is left out: {reason}.") if tokenizer is None else (texts_of(tokenizer, ids), "")


def _write_to_stdout(page: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(page)
    sys.stdout.buffer.flush()
