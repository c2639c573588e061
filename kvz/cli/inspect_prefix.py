"""kvz inspect -v: the tokens before the document as text, a date among them that the chat template put there."""

from __future__ import annotations

import struct

from kvz.cli import console
from kvz.cli.archive_tokenizer import find_tokenizer
from kvz.format.reader import ArchiveFile

__all__ = ["prefix_of"]


def prefix_of(opened: ArchiveFile, model: str | None) -> tuple[str | None, str]:
    """The prefix of an archive as text, control tokens included; or None, and why it cannot be shown.

    Raises CorruptArchive if the token ids are damaged, ModelError or ArchiveMismatch if `model`, where it is given,
    cannot decode them.
    """
    manifest = opened.manifest
    count = manifest.prompt.prefix_tokens
    if not count:
        return "", ""
    if not manifest.source.text_included:
        return None, "the archive was made without its token ids (--omit-text)"
    ids = struct.unpack(f"<{count}i", opened.read("token_ids")[: 4 * count])
    tokenizer, reason = find_tokenizer(manifest, ids, model, console.terminal_progress(quiet=False))
    return (None, reason) if tokenizer is None else (tokenizer.decode(ids, control=True), "")
