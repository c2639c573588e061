"""The user's cache folder, and building a folder in it so that it is either complete or not there."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from kvz.errors import ModelError

__all__ = ["build_once", "cache_folder", "disk_problem", "is_complete", "optional_cache_folder"]

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_SIZES = "kvz-files.json"
_PATIENCE = 0.5  # seconds of waiting that nobody has to be told of


def cache_folder() -> Path:
    """`$KVZ_CACHE`, or the platform's cache folder for kvz; it may not exist yet. ModelError if there is none."""
    try:
        override = os.environ.get("KVZ_CACHE")
        return (Path(override) if override else user_cache_path("kvz")).expanduser()
    except RuntimeError as error:
        raise ModelError(f"there is no cache folder ({error}); set KVZ_CACHE to a folder you can write") from error


def optional_cache_folder() -> Path | None:
    """The same for what can be done without: None if there is none. What is there may be out of reach: OSError."""
    try:
        return cache_folder()
    except ModelError:
        return None


def disk_problem(error: BaseException | str) -> str | None:
    """Why the disk refuses to be written to, as an error, what caused it or a message has it; None if it does not."""
    text = error if isinstance(error, str) else ""
    seen = None if isinstance(error, str) else error
    while seen is not None:
        if isinstance(seen, PermissionError) and seen.filename is not None:
            return str(seen.strerror)
        text += f"{seen}\n"
        seen = seen.__cause__ or seen.__context__
    return next((words for words in map(os.strerror, _DISK) if words.lower() in text.lower()), None)


def is_complete(folder: Path) -> bool:
    """Whether `folder` was finished by `build_once` and its files still have the sizes they had then."""
    try:
        sizes = json.loads((folder / _SIZES).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def build_once(folder: Path, build: Callable[[Path], None], say: Callable[[str], None] = lambda message: None) -> Path:
    """Return `folder`, calling `build(partial)` to fill it first if it is not complete.

    Only one process builds; the others wait, and `say` is told so. An interrupted build leaves a `.partial` folder that
    is never used and is removed by the next one. Raises ModelError if the disk refuses.
    """
    if is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder, say):
            if not is_complete(folder):
                _build(folder, build)
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache {folder.parent}: {error.strerror or error}; set KVZ_CACHE to another"
        ) from error
    return folder


@contextmanager
def _lock(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    from filelock import FileLock, Timeout  # it takes 50 ms to import, and most runs build nothing

    lock = FileLock(folder.parent / f"{folder.name}.lock")
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        say(f"waiting for another process that is fetching or converting {folder.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _open_to_all(folder: Path) -> None:
    """Give all in a folder the modes of new files, as the folder has them itself: libraries make private ones.

    A cache may be fetched by one user and read by others.
    """
    mode = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    for stale in folder.parent.glob(f"{folder.name}.*.partial"):
        shutil.rmtree(stale, ignore_errors=True)
    partial = folder.parent / f"{folder.name}.{secrets.token_hex(8)}.partial"
    partial.mkdir()
    try:
        build(partial)
        sizes = {str(p.relative_to(partial)): p.stat().st_size for p in partial.rglob("*") if p.is_file()}
        (partial / _SIZES).write_text(json.dumps(sizes))
        shutil.rmtree(folder, ignore_errors=True)
        _open_to_all(partial)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
