"""Compiling a kernel with numba, and running it on as many threads as torch uses."""

from __future__ import annotations

import glob
import hashlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import torch
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

from kvz.models.cache_folder import optional_cache_folder

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

    Its machine code is kept in kvz's cache folder, apart for each processor and each state of the sources in this
    folder; without a place for it, it is compiled every time.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._call: Function | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it. Arrays must be contiguous: other ones have other types, for which it is compiled anew."""
        threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
        with _RUNNING:
            if self._call is None:
                _start_threads()
            before = numba.get_num_threads()
            if before == threads:
                return self._run(*arguments)
            numba.set_num_threads(threads)  # of this thread alone
            try:
                return self._run(*arguments)
            finally:
                numba.set_num_threads(before)

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
        folder = kept_folder()
        if folder is None:
            return
        module, name = self._function.__module__.rpartition(".")[2], self._function.__qualname__
        with suppress(OSError):
            for path in folder.rglob(f"{glob.escape(f'{module}.{name}')}-*.nb[ci]"):
                path.unlink()


def _start_threads() -> None:
    """Let numba start its threads, once a process, from a thread that ends: the one that does it is left with as many
    threads for torch, if the two share a library for them."""
    starting = threading.Thread(target=numba.get_num_threads)
    starting.start()
    starting.join()


def _jit(function: Function, **options: Any) -> Function:
    made: Function = numba.njit(fastmath=True, error_model="numpy", parallel=True, **options)(function)
    return made


def _kept(function: Function) -> Function:
    """A function whose machine code is kept. numba looks at its own file alone, and not at those of its parts."""
    made = _jit(function)
    folder = kept_folder()
    if folder is not None:
        _drop_old(folder)
        with suppress(RuntimeError, OSError):  # it is no folder that may be written to
            made._cache = _KeptCode(function)  # type: ignore[attr-defined]
    return made


class _Place:
    """Where numba keeps a function's code: in `kept_folder`, whatever the process has configured for its own code."""

    def __init__(self, function: Function, file: str) -> None:
        self._py_file = file
        self._line = function.__code__.co_firstlineno
        self._folder = kept_folder()

    @classmethod
    def from_function(cls, function: Function, file: str) -> _Place:
        """Raises OSError where nothing can be written."""
        place = cls(function, file)
        place.ensure_cache_path()
        return place

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        if self._folder is None:
            raise FileNotFoundError
        self._folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=self._folder).close()

    def get_cache_path(self) -> str:
        """The folder."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """The same for all files in a folder: code for other sources lies in another."""
        return ""

    def get_disambiguator(self) -> str:
        """Apart for functions of one name in one file."""
        return str(self._line)


class _KeptResults(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Place,)


class _KeptCode(FunctionCache):  # type: ignore[misc]
    _impl_class = _KeptResults


def _drop_old(folder: Path) -> None:
    """Where code for new sources will be put, remove what other versions left there and nobody added to for long."""
    with suppress(OSError):
        if folder.exists():
            return
        for other in folder.parent.iterdir():
            if other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


def kept_folder() -> Path | None:
    """Where machine code is kept; None where there is no cache folder.

    A home folder may be shared by machines, and numba told of another processor: code for one is not to be taken for,
    nor overwritten by, that for another.
    """
    folder = optional_cache_folder()
    return None if folder is None else folder / "kernels" / _made_from()


def _made_from() -> str:
    """A digest of the processor that kernels are compiled for, and of the files that they are made from."""
    digest = hashlib.sha256(repr(cpu_target.target_context.codegen().magic_tuple()).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        with suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
