"""Compiling a kernel with numba, and running it on as many threads as torch uses."""

from __future__ import annotations

import glob
import hashlib
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import torch
from numba.core.errors import NumbaError

from kvz.models.cache_folder import cache_folder

__all__ = ["Kernel", "compiled", "kept_folder", "part"]

Function = Callable[..., Any]

_KEPT_SECONDS = 90 * 24 * 3600
_RUNNING = threading.Lock()  # one of numba's thread pools may not be entered twice


def part(function: Function) -> Function:
    """A part of a kernel: a function that kernels call."""
    made: Function = numba.njit(fastmath=True, error_model="numpy")(function)
    return made


def compiled(function: Function) -> Kernel:
    """A kernel; its loops over `numba.prange` are spread over the threads."""
    return Kernel(function)


class Kernel:
    """A function that is compiled when it is first called.

    Its machine code is kept in kvz's cache folder, apart for each state of the sources in this folder; without a place
    for it, it is compiled every time.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._call: Function | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it. Arrays must be contiguous: other ones have other types, for which it is compiled anew."""
        threads = torch.get_num_threads()
        with _RUNNING:
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
            result = self._run(*arguments)
        if torch.get_num_threads() != threads:  # the two may share a thread pool, and numba sets its size
            torch.set_num_threads(threads)
        return result

    def _run(self, *arguments: Any) -> Any:
        """Kernels raise nothing themselves but for want of memory: other errors are of machine code that cannot be read
        or written, and it is made anew, at last without keeping it."""
        if self._call is None:
            self._call = _kept(self._function)
        try:
            return self._call(*arguments)
        except (MemoryError, NumbaError):
            raise
        except Exception:
            self._forget()
            self._call = _kept(self._function)
        try:
            return self._call(*arguments)
        except (MemoryError, NumbaError):
            raise
        except Exception:
            self._call = _jit(self._function)
            return self._call(*arguments)

    def _forget(self) -> None:
        """Remove this kernel's machine code, and no other's: they may be in use."""
        module, name = self._function.__module__.rpartition(".")[2], self._function.__qualname__
        for path in kept_folder().rglob(f"{glob.escape(f'{module}.{name}')}-*.nb[ci]"):
            with suppress(OSError):
                path.unlink()


def _jit(function: Function, **options: Any) -> Function:
    made: Function = numba.njit(fastmath=True, error_model="numpy", parallel=True, **options)(function)
    return made


def _kept(function: Function) -> Function:
    """A function whose machine code is kept. numba looks at its own file alone, and not at those of its parts."""
    _drop_old()
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(kept_folder())
    try:
        return _jit(function, cache=True)
    except (RuntimeError, OSError):  # there is no folder that numba may write to
        return _jit(function)
    finally:
        numba.config.CACHE_DIR = before


def _drop_old() -> None:
    """Where code for new sources will be put, remove what other versions left there and nobody added to for long."""
    if kept_folder().exists():
        return
    with suppress(OSError):
        for other in kept_folder().parent.iterdir():
            if other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


def kept_folder() -> Path:
    """Where machine code is kept."""
    return cache_folder() / "kernels" / _sources()


def _sources() -> str:
    """A digest of the files that kernels are made from."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        with suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
