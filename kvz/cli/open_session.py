"""A session over an archive, as the commands that ask questions open it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvz.cli.answers import say_compiling, say_covered
from kvz.format.reader import ArchiveFile, read_archive
from kvz.models.placement import check_placement
from kvz.models.recorded import of_recorded
from kvz.models.source import check_model

if TYPE_CHECKING:
    from kvz.config import Decoding
    from kvz.decode.session import Session
    from kvz.progress import Progress

__all__ = ["OpenedArchive", "open_session"]


@dataclass(frozen=True)
class OpenedArchive:
    """An archive, the model that it is to be asked with, and a device, as far as they are checked without torch."""

    file: ArchiveFile
    data: memoryview | None
    model: str | None
    device: str

    @classmethod
    def of_options(cls, archive: str, verify: bool, mmap: bool | None, model: str | None, device: str) -> OpenedArchive:
        """Open an archive; raises UsageError, ArchiveError, CorruptArchive, ArchiveVersion or ModelError."""
        check_placement(device)
        if model is not None:
            check_model(model)
        file, data = read_archive(archive, verify, mmap)
        of_recorded(file.manifest, model, check_model)
        return cls(file, data, model, device)


def open_session(opened: OpenedArchive, decoding: Decoding, progress: Progress) -> Session:
    """Load the model named, or the archive's own, and say what is special about how the archive will be read.

    Raises ArchiveMismatch, ModelError or UsageError.
    """
    from kvz.archive import load_opened, model_of

    archive = load_opened(opened.file, opened.data)
    chosen = model_of(archive.manifest, opened.model, opened.device, progress)
    session = archive.session(chosen, decoding)
    say_covered(decoding.budget, session.policy, progress.say)
    say_compiling(session, progress)
    return session
