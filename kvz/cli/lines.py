"""Lines of text as they come through a pipe, or from a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from kvz.errors import QuestionError

__all__ = ["Readable", "read_lines"]

_END = re.compile(rb"\r\n|\r|\n")
_CHUNK = 1 << 16  # bytes
_LONGEST = 1 << 24  # bytes of a line


class Readable(Protocol):
    """A binary stream that gives what there is."""

    def read1(self, size: int, /) -> bytes:
        """At most `size` bytes, as soon as there are any; none at its end."""
        ...


def read_lines(stream: Readable, shown: str) -> Iterator[tuple[int, str]]:
    """Lines and their numbers from 1, each as soon as its end is read: LF, CR LF or CR. A byte-order mark is dropped.

    Raises QuestionError, naming the line in the stream `shown`, for one that is not UTF-8 or longer than 16 MiB.
    """
    for number, (start, line) in enumerate(_raw_lines(stream, shown), 1):
        try:
            yield number, line.decode().removeprefix("\ufeff" if number == 1 else "")
        except UnicodeDecodeError as error:
            raise QuestionError(
                f"{shown}, line {number}: not UTF-8 at byte {start + error.start}; convert it with iconv"
            ) from None


def _raw_lines(stream: Readable, shown: str) -> Iterator[tuple[int, bytes]]:
    """Lines without their ends, and the byte that each begins at."""
    held: list[bytes] = []  # the beginning of a line
    start, number, after_cr = 0, 1, False
    while chunk := stream.read1(_CHUNK):
        at = 1 if after_cr and chunk.startswith(b"\n") else 0
        start += at
        after_cr = chunk.endswith(b"\r")
        for end in _END.finditer(chunk, at):
            line = b"".join([*held, chunk[at : end.start()]])
            yield start, line
            start, number, at, held = start + len(line) + len(end[0]), number + 1, end.end(), []
        held += [chunk[at:]] if at < len(chunk) else []
        if sum(map(len, held)) > _LONGEST:
            raise QuestionError(f"{shown}, line {number} is longer than {_LONGEST >> 20} MiB; no question is so long")
    if held:
        yield start, b"".join(held)
