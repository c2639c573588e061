"""Writing a file so that it is either complete under its name or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kvz.errors import OutputError

__all__ = ["atomic_file", "check_target", "is_taken", "output_error"]


def check_target(path: Path, overwrite: bool) -> None:
    """Fail early where `atomic_file` would fail late: raises OutputError if `path` cannot be written."""
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder; give a file name")
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is not a regular file and cannot be replaced; give another name")
        if is_taken(path) and not overwrite:
            raise OutputError(f"{path} exists; give --force (overwrite=True) to replace it")
        if not path.parent.is_dir():
            raise OutputError(f"the output folder {path.parent} does not exist; create it first")
        with _temporary(path.parent):
            pass
    except (OSError, ValueError) as error:
        raise output_error(path, error) from error


def is_taken(path: Path) -> bool:
    """Whether something has this name, be it a link to nothing, so that no file can be given it without replacing it.

    Raises OSError or ValueError for a name that no file can have.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def atomic_file(path: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """A binary file to write, which appears as `path`, complete and synced, when the block ends without an error.

    On Linux the file has no name until then, so that even a killed process leaves nothing behind; elsewhere it is a
    temporary file in the same folder. Raises OutputError.
    """
    check_target(path, overwrite)
    try:
        with _temporary(path.parent) as (file, name):
            yield file
            file.flush()
            os.fsync(file.fileno())
            _publish(file, name, path, overwrite)
        _sync_folder(path.parent)
    except OSError as error:
        raise output_error(path, error) from error


def output_error(path: Path | str, error: OSError | ValueError) -> OutputError:
    """The OutputError that tells a user what an error while writing `path` means."""
    if not isinstance(error, OSError):
        return OutputError(f"{str(path)!r} cannot be written: {error}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(f"no space left for {path}; free some or write elsewhere")
    if error.errno == errno.EFBIG:
        return OutputError(f"{path} grows past the file size allowed here (ulimit -f)")
    if error.errno == errno.EEXIST:
        return OutputError(f"{path} exists; give --force (overwrite=True) to replace it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return OutputError(f"{path} cannot be written: the folder is read-only; write elsewhere")
    return OutputError(f"{path} cannot be written: {error.strerror or error}")


@contextmanager
def _temporary(folder: Path) -> Iterator[tuple[BinaryIO, str | None]]:
    """An open file in `folder`, and its name unless it has none; gone when the block ends, unless published."""
    handle = _open_nameless(folder)
    name = None
    if handle is None:
        name = str(folder / f".kvz-{secrets.token_hex(8)}.tmp")
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file, name
    finally:
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def _open_nameless(folder: Path) -> int | None:
    """A handle on a file without a name, or None where there is no such thing, or none that could be named later."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        _try_naming(folder)  # so that a failure does not turn out after all the work
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError:
        return None


def _try_naming(folder: Path) -> None:
    """Name a nameless file and remove it: one of its own, for a file once removed cannot be named again."""
    trial = folder / f".kvz-{secrets.token_hex(8)}.tmp"
    handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    try:
        _link(handle, trial)
        os.unlink(trial)
    finally:
        os.close(handle)


def _publish(file: BinaryIO, name: str | None, path: Path, overwrite: bool) -> None:
    """Give the finished file its name; without `overwrite`, an existing one is never replaced, even in a race."""
    if not overwrite:
        _name_new(file, name, path)
        return
    if name is not None:
        os.replace(name, path)
        return
    passing = path.parent / f".kvz-{secrets.token_hex(8)}.tmp"
    try:
        _link(file.fileno(), passing)
        os.replace(passing, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(passing)
        raise


def _name_new(file: BinaryIO, name: str | None, path: Path) -> None:
    """Name a finished file `path`, which must not exist. A hard link is refused if it does; a rename would replace."""
    if name is None:
        _link(file.fileno(), path)
        return
    try:
        os.link(name, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if is_taken(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(name, path)


def _link(handle: int, path: Path) -> None:
    """Name a file that has none. A folder handle makes Python call linkat, which alone follows /proc's links."""
    folder = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        os.link(str(handle), path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut; not every file system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
