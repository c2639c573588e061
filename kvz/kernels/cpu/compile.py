"""Compiling a kernel with numba, and running it on as many threads as torch uses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numba
import torch

__all__ = ["Kernel", "compiled", "part"]

Function = Callable[..., Any]


def part(function: Function) -> Function:
    """A part of a kernel: a function that kernels call."""
    made: Function = numba.njit(fastmath=True)(function)
    return made


def compiled(function: Function) -> Kernel:
    """A kernel; its loops over `numba.prange` are spread over the threads."""
    return Kernel(function)


class Kernel:
    """A compiled function whose machine code is kept on disk; without a place for it, it is compiled every time."""

    def __init__(self, function: Function) -> None:
        self._plain: Function = numba.njit(fastmath=True, parallel=True)(function)
        self._lock = threading.Lock()  # one of numba's thread pools may not be entered twice
        try:
            self._call: Function = numba.njit(fastmath=True, parallel=True, cache=True)(function)
        except RuntimeError:  # numba found no folder that it may write to
            self._call = self._plain

    def __call__(self, *arguments: Any) -> Any:
        """Run it. Arrays must be contiguous: other ones have other types, for which it is compiled anew."""
        with self._lock:
            numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
            try:
                return self._call(*arguments)
            except OSError:  # a kernel raises none: its machine code could not be written
                self._call = self._plain
                return self._plain(*arguments)
