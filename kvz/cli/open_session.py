"""A session over an archive, as the commands that ask questions open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvz.cli.answers import say_compiling, say_covered

if TYPE_CHECKING:
    from kvz.archive import Archive
    from kvz.decode.decoding import Decoding
    from kvz.decode.session import Session
    from kvz.progress import Progress

__all__ = ["check_compile", "open_session"]


def check_compile(asked: bool, device: str) -> None:
    """Raise UsageError if `--compile` was `asked` for and is of no use on a device of this name."""
    if asked:
        from kvz.models.compiled_layers import check_compiles
        from kvz.models.language_model import placement

        check_compiles(placement(device, "auto")[0])


def open_session(
    archive: Archive, decoding: Decoding, model: str | None, device: str, compiled: bool, progress: Progress
) -> Session:
    """Load the model named, or the archive's own, and say what is special about how the archive will be read.

    Raises ArchiveMismatch, ModelError or UsageError.
    """
    from kvz.archive import model_of

    chosen = model_of(archive.manifest, model, device, progress)
    if compiled:
        chosen.compile_steps()
        progress.say("the model's layers are compiled for steps when the first one comes: it takes tens of seconds")
    session = archive.session(chosen, decoding)
    say_covered(decoding.budget, session.policy, progress.say)
    say_compiling(session, progress)
    return session
