"""Reading a document: text from a file or a pipe, refused by name where it is not text."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from kvz.errors import DocumentError

__all__ = ["Document", "document_from_text", "read_document"]

_BINARY = {
    b"%PDF": "a PDF; extract its text first (for example with pdftotext)",
    b"PK\x03\x04": "a ZIP container (docx, odt, epub?); save it as plain text first",
    b"\x1f\x8b": "gzip-compressed; pipe it through gunzip -c",
    b"\xff\xfe": "UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8",
}


@dataclass(frozen=True)
class Document:
    """A document's text, its name, and the sha256 and size in bytes of what was read."""

    name: str
    text: str
    sha256: str
    size: int


def read_document(path: str | Path) -> Document:
    """Read a UTF-8 text file, or standard input for "-"; a byte-order mark is dropped.

    Raises DocumentError if there is no such file, or if it is empty, blank, binary or not UTF-8.
    """
    if str(path) == "-":
        return _read_stdin()
    path = Path(path)
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise DocumentError(f"{path} is a folder; give a text file, or - for standard input")
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise DocumentError(f"{path} is a device; give a text file, or - for standard input")
        return _parse(path.read_bytes(), os.fsencode(path.name).decode(errors="replace"), str(path))
    except FileNotFoundError:
        raise DocumentError(f"no such document: {path}") from None
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _read_stdin() -> Document:
    if sys.stdin is None:
        raise DocumentError("standard input is closed; give a file")
    try:
        return _parse(sys.stdin.buffer.read(), "-")
    except OSError as error:
        raise DocumentError(f"cannot read standard input: {error.strerror or error}") from error


def document_from_text(text: str, name: str = "text") -> Document:
    """A document from a string; raises DocumentError if it is blank or cannot be written as UTF-8."""
    try:
        return _parse(text.encode(), name)
    except UnicodeEncodeError as error:
        raise DocumentError(f"the text has a lone surrogate at character {error.start}; it is not valid text") from None


def _parse(data: bytes, name: str, shown: str | None = None) -> Document:
    shown = shown or ("standard input" if name == "-" else f"the document '{name}'")
    if not data:
        raise DocumentError(f"{shown} is empty; there is no text in it")
    for magic, kind in _BINARY.items():
        if data.startswith(magic):
            raise DocumentError(f"{shown} is {kind}")
    if (nul := data.find(b"\0")) >= 0:
        raise DocumentError(f"{shown} is binary (a zero byte at offset {nul}); give plain UTF-8 text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{shown} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; "
            "convert it with iconv -t UTF-8"
        ) from None
    if not text.strip():
        raise DocumentError(f"{shown} is blank; there is no text in it")
    return Document(name, text, hashlib.sha256(data).hexdigest(), len(data))
