"""A file that is read: opened once, so that all that is read of it is one file's, whatever takes its name meanwhile."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from kvz.errors import ArchiveError
from kvz.format import mounts

__all__ = ["OpenFile"]

_BLOCK = 1 << 24  # bytes of one read, between which an interrupt is heard


class OpenFile:
    """A regular file, open for reading as long as anything refers to it.

    A pickle has None in its place.
    """

    def __init__(self, path: Path) -> None:
        """Raises ArchiveError if there is no such file, or if it is none that can be mapped."""
        self.path = path
        try:
            _check_regular(path, path.stat())  # before it is opened: opening a pipe waits for its writer
            self._file = path.open("rb", buffering=0)
            status = os.fstat(self._file.fileno())
        except FileNotFoundError:
            raise ArchiveError(f"no such archive: {path}") from None
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        _check_regular(path, status)
        self.size = status.st_size
        self._changed = status.st_mtime_ns

    def __del__(self) -> None:
        """Close the file; what is mapped of it stays."""
        if hasattr(self, "_file"):
            self._file.close()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """An open file is of one process; what was mapped of it is pickled as bytes, which do not need it."""
        return type(None), ()

    @property
    def is_local(self) -> bool:
        """Whether no other machine serves the file, so that a mapping of it does not hang or fail with the network."""
        return mounts.is_local(self._file.fileno())

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill `target` with the file's bytes from `start` on. Raises ArchiveError."""
        try:
            self._file.seek(start)
            done = 0
            while done < len(target):
                count = self._file.readinto(target[done : done + _BLOCK])
                if not count:
                    self.check_unchanged()
                    raise ArchiveError(f"cannot read {self.path}: it ends after {start + done} bytes")
                done += count
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def contents(self, start: int, mapped: bool) -> memoryview:
        """The file's bytes from `start` on: mapped, or a copy in memory, which no change of the file reaches.

        What is written to either does not reach the file. Raises ArchiveError.
        """
        try:
            if mapped:
                whole = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_COPY)
                return memoryview(whole)[start:]
            copy = memoryview(mmap.mmap(-1, self.size - start, access=mmap.ACCESS_COPY))
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, error) from error
        self.read_into(start, copy)
        return copy

    def check_unchanged(self) -> None:
        """Raise ArchiveError if the file has been written to, or cut, since it was opened."""
        try:
            status = os.fstat(self._file.fileno())
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if (status.st_size, status.st_mtime_ns) != (self.size, self._changed):
            raise ArchiveError(
                f"{self.path} was changed in place while it was open; open it again, and replace an archive by a new "
                "file, not by copying over it"
            )


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or device"
        raise ArchiveError(f"{path} is {kind}, not a .kvz archive; give a file")


def _unreadable(path: Path, error: OSError | ValueError) -> ArchiveError:
    return ArchiveError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")
