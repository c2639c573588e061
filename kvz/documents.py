"""Reading a document: text from a file or a pipe, refused by name where it is not text."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kvz.errors import DocumentError

__all__ = ["Document", "document_from_text", "line_feeds", "read_document"]

_BINARY = {
    b"%PDF": "a PDF; extract its text first (for example with pdftotext)",
    b"PK\x03\x04": "a ZIP container (docx, odt, epub?); save it as plain text first",
    b"\x1f\x8b": "gzip-compressed; pipe it through gunzip -c",
    b"\xff\xfe": "UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8",
}


_MOST_BYTES = 1 << 28  # more than any model has positions for
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Document:
    """A document's text, its name, and the sha256 and size in bytes of what was read.

    `newlines` counts the line ends CR LF and CR that are LF in the text.
    """

    name: str
    text: str
    sha256: str
    size: int
    newlines: int = 0


def read_document(path: str | Path, keep_newlines: bool = False) -> Document:
    """Read a UTF-8 text file, or standard input for "-"; a byte-order mark is dropped.

    Line ends CR LF and CR become LF, unless `keep_newlines`. Raises DocumentError if there is no such file, or if it is
    empty, blank, binary, not UTF-8 or longer than 256 MiB, as soon as that is known.
    """
    if str(path) == "-":
        return _read_stdin(keep_newlines)
    path = Path(path)
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise DocumentError(f"{path} is a folder; give a text file, or - for standard input")
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise DocumentError(f"{path} is a device; give a text file, or - for standard input")
        name = os.fsencode(path.name).decode(errors="replace")
        with path.open("rb") as file:
            return _parse(_chunks(file), name, str(path), keep_newlines)
    except FileNotFoundError:
        raise DocumentError(f"no such document: {path}") from None
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _read_stdin(keep_newlines: bool) -> Document:
    if sys.stdin is None:
        raise DocumentError("standard input is closed; give a file")
    try:
        return _parse(_chunks(sys.stdin.buffer), "-", "standard input", keep_newlines)
    except OSError as error:
        raise DocumentError(f"cannot read standard input: {error.strerror or error}") from error


def document_from_text(text: str, name: str = "text", keep_newlines: bool = False) -> Document:
    """A document from a string; raises DocumentError if it is blank or cannot be written as UTF-8."""
    try:
        return _parse([text.encode()], name, f"the document '{name}'", keep_newlines)
    except UnicodeEncodeError as error:
        raise DocumentError(f"the text has a lone surrogate at character {error.start}; it is not valid text") from None


def line_feeds(text: str) -> str:
    """`text` with LF in the place of the line ends CR LF and CR."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _parse(chunks: Iterable[bytes], name: str, shown: str, keep_newlines: bool) -> Document:
    """A document from bytes as they come; what is wrong is told as soon as it is seen, and no more is read."""
    digest, size, parts = hashlib.sha256(), 0, []
    decoder = codecs.getincrementaldecoder("utf-8")()
    for chunk in chunks:
        if size == 0:
            _check_kind(chunk, shown)
        if (nul := chunk.find(b"\0")) >= 0:
            raise DocumentError(f"{shown} is binary (a zero byte at offset {size + nul}); give plain UTF-8 text")
        parts.append(_decoded(decoder, chunk, size, shown))
        digest.update(chunk)
        size += len(chunk)
        if size > _MOST_BYTES:
            raise DocumentError(
                f"{shown} is longer than {_MOST_BYTES >> 20} MiB, more than any model has positions for; give a part"
            )
    if size == 0:
        raise DocumentError(f"{shown} is empty; there is no text in it")
    parts.append(_decoded(decoder, b"", size, shown))
    text = "".join(parts).removeprefix("\ufeff")
    if not text or text.isspace():
        raise DocumentError(f"{shown} is blank; there is no text in it")
    newlines = 0 if keep_newlines else text.count("\r")
    return Document(name, line_feeds(text) if newlines else text, digest.hexdigest(), size, newlines)


def _check_kind(data: bytes, shown: str) -> None:
    """Raise DocumentError where a file's first bytes say that it is something else."""
    for magic, kind in _BINARY.items():
        if data.startswith(magic):
            raise DocumentError(f"{shown} is {kind}")


def _decoded(decoder: codecs.IncrementalDecoder, chunk: bytes, offset: int, shown: str) -> str:
    """Text of a chunk at byte `offset`; an empty one is the end."""
    held = len(decoder.getstate()[0])
    try:
        return decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{shown} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {offset - held + error.start}; "
            "convert it with iconv -t UTF-8"
        ) from None
