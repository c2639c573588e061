"""A session over an archive, as the commands that ask questions open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvz.cli.answers import say_compiling, say_covered

if TYPE_CHECKING:
    from kvz.archive import Archive
    from kvz.decode.decoding import Decoding
    from kvz.decode.session import Session
    from kvz.progress import Progress

__all__ = ["open_session"]


def open_session(archive: Archive, decoding: Decoding, model: str | None, device: str, progress: Progress) -> Session:
    """Load the model named, or the archive's own, and say what is special about how the archive will be read.

    Raises ArchiveMismatch, ModelError or UsageError.
    """
    from kvz.archive import model_of

    chosen = model_of(archive.manifest, model, device, progress)
    session = archive.session(chosen, decoding)
    say_covered(decoding.budget, session.policy, progress.say)
    say_compiling(session, progress)
    return session
