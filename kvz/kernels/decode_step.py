"""Kernels of a decode step for this machine, where there are any: a CPU's, compiled by numba."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kvz.cache.bit_planes import BitPlanes
    from kvz.kernels.cpu.chosen_step import ChosenStep
    from kvz.kernels.cpu.plane_scores import PlaneScores
    from kvz.kernels.cpu.plane_step import PlaneStep
    from kvz.kernels.cpu.ragged_step import RaggedStep

__all__ = [
    "MOST_DENSE_ROWS",
    "chosen_step",
    "compiles",
    "is_to_be_compiled",
    "plane_scores",
    "plane_step",
    "ragged_step",
]

_LEAST_SHARE = 256  # pairs: with fewer, a second thread costs more than it saves
_MOST_SHARES = 32
_DENSE = "dense"
_KERNELS = {_DENSE: "ragged_step", "lowbit": "plane_step", "sparq": None}
"""The kernel of a policy's steps, by the name of its file, None without one; of all others it is `chosen_step`."""
MOST_DENSE_ROWS = 64
"""Query rows of a head that a dense step takes at a time."""
_DTYPES = {torch.bfloat16: "uint16", torch.float16: "int16", torch.float32: "float32"}
"""What kernels take, and the element type that they know it by."""


def ragged_step(keys: Tensor, values: Tensor, bounds: Sequence[int]) -> RaggedStep | None:
    """Dense attention over a layer's flat pairs; None where plain torch is to be used."""
    if not compiles(keys):
        return None
    from kvz.kernels.cpu.ragged_step import RaggedStep

    return RaggedStep.of(keys, values, bounds, _shares(bounds[-1]))


def chosen_step(keys: Tensor, values: Tensor, bounds: tuple[int, ...], prefix: int) -> ChosenStep | None:
    """Attention over chosen pairs of a layer; None where plain torch is to be used."""
    if not compiles(keys):
        return None
    from kvz.kernels.cpu.chosen_step import ChosenStep

    return ChosenStep.of(keys, values, bounds, prefix)


def plane_step(pairs: ChosenStep | None, index: PlaneScores | None, takes: Sequence[int]) -> PlaneStep | None:
    """All of a sparse step by bit planes; None where plain torch is to be used."""
    if pairs is None or index is None:
        return None
    from kvz.kernels.cpu.plane_step import PlaneStep

    return PlaneStep.of(pairs, index, takes)


def plane_scores(index: BitPlanes, rows: Sequence[int], lengths: Sequence[int]) -> PlaneScores | None:
    """Scores of a layer's bit planes, rows[h] of them for each head; None where plain torch is to be used."""
    if not compiles(index.ranges):
        return None
    from kvz.kernels.cpu.plane_scores import PlaneScores

    return PlaneScores.of(index, rows, lengths)


def _shares(pairs: int) -> int:
    """Shares of a layer: a power of two, and the same for any number of threads, so that sums are too."""
    return 1 << (max(1, min(_MOST_SHARES, pairs // _LEAST_SHARE)).bit_length() - 1)


def is_to_be_compiled(device: torch.device, policy: str, dtype: torch.dtype, group: int) -> bool:
    """Whether the kernel that a policy's first step needs has no machine code on this machine yet.

    The step is that of one question, with `group` query heads to a head of pairs of `dtype`. Layers that a sparse
    policy reads densely may need a kernel more.
    """
    kernel = _KERNELS.get(policy, "chosen_step")
    if kernel is None or (policy == _DENSE and group > MOST_DENSE_ROWS):
        return False
    if device.type != "cpu" or dtype not in _DTYPES or not _has_numba():
        return False
    from kvz.kernels.cpu.compile import kept_folder

    folder = kept_folder()
    try:
        kept = [] if folder is None else list(folder.rglob(f"{kernel}.*.nbi"))
    except OSError:
        kept = []
    return not any(_holds(index, _DTYPES[dtype]) for index in kept)


def _holds(index: Path, element: str) -> bool:
    """Whether numba's index of a kernel's machine code has one for pairs of such elements; False if it is unreadable.

    The index is numba's version, then, pickled once more, a stamp and a table by signature; a kernel's second argument
    are the keys.
    """
    try:
        with index.open("rb") as file:
            pickle.load(file)
            _, table = pickle.load(file)
        return any(str(key[0][1].dtype) == element for key in table)
    except Exception:  # whatever pickle and another version of numba come up with: it is compiled anew
        return False


def compiles(tensor: Tensor) -> bool:
    """Whether there are kernels for a tensor of this device and dtype."""
    return tensor.device.type == "cpu" and tensor.dtype in _DTYPES and _has_numba()


@cache
def _has_numba() -> bool:
    """Whether numba is here and works: it refuses a numpy that is too new for it."""
    try:
        import numba
    except ImportError:
        return False
    return not numba.config.DISABLE_JIT
