"""kvz verify: is an archive whole, and does it belong to a model."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from kvz import wording
from kvz.cli import console
from kvz.cli.options import ArchivePath, JsonOption, QuietOption
from kvz.format.reader import open_archive

__all__ = ["verify"]


def verify(
    archive: ArchivePath,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--model", "-m", metavar="MODEL", help="Also compare the fingerprints of this model."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check an archive: header, every checksum, offsets and positions; with -m, that the model is the right one."""
    opened = open_archive(archive)
    progress = console.terminal_progress(quiet)
    total = opened.header.file_size - opened.header.data_start
    progress.start("verify", total, "B")
    checked = 0
    try:
        for now in opened.verify_checksums():
            progress.advance(now - checked)
            checked = now
    finally:
        progress.finish()
    from kvz.format.tensors import check_cache

    check_cache(opened)
    if model is not None:
        from kvz.archive import check_identity, identity_of

        check_identity(opened.manifest, identity_of(opened.manifest, model, progress))
    tensors = len(opened.header.tensors)
    if as_json:
        console.emit_json({"archive": archive, "ok": True, "tensors": tensors, "bytes": checked, "model": model})
    else:
        suffix = f", made with {model}" if model is not None else ""
        console.emit(f"{archive}: sound ({tensors} tensors, {wording.size(checked)} checked{suffix})")
