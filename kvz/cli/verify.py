"""kvz verify: is an archive whole, and does it belong to a model."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from kvz import wording
from kvz.cli import console
from kvz.cli.options import ArchivePath, JsonOption, QuietOption
from kvz.format.reader import open_archive
from kvz.models.source import check_model

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
    """Check an archive: header, manifest, every checksum, what each tensor holds; with -m, that the model is right."""
    if model is not None:
        check_model(model)
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
    vocabulary = None
    if model is not None:
        from kvz.archive import check_identity, identity_of

        identity = identity_of(opened.manifest, model, progress)
        check_identity(opened.manifest, identity)
        vocabulary = identity.vocabulary_size
    from kvz.format.soundness import check_tensors

    check_tensors(opened, vocabulary)
    tensors = len(opened.header.tensors)
    if as_json:
        console.emit_json({"archive": archive, "ok": True, "tensors": tensors, "bytes": checked, "model": model})
    else:
        suffix = f", made with {model}" if model is not None else ""
        console.emit(f"{archive}: sound ({tensors} tensors, {wording.size(checked)} checked{suffix})")
