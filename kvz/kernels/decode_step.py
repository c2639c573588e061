"""Kernels of a decode step for this machine, where there are any: a CPU's, compiled by numba."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kvz.cache.bit_planes import BitPlanes
    from kvz.kernels.cpu.chosen_step import ChosenStep
    from kvz.kernels.cpu.plane_scores import PlaneScores
    from kvz.kernels.cpu.plane_step import PlaneStep
    from kvz.kernels.cpu.ragged_step import RaggedStep

__all__ = ["chosen_step", "is_to_be_compiled", "plane_scores", "plane_step", "ragged_step"]

_LEAST_SHARE = 256  # pairs: with fewer, a second thread costs more than it saves
_MOST_SHARES = 32
_KERNELS = {"dense": "ragged_step", "lowbit": "plane_step"}
"""The kernel of a policy's steps, by the name of its file; of all others it is `chosen_step`."""
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def ragged_step(keys: Tensor, values: Tensor, bounds: Sequence[int]) -> RaggedStep | None:
    """Dense attention over a layer's flat pairs; None where plain torch is to be used."""
    if not _compiles(keys):
        return None
    from kvz.kernels.cpu.ragged_step import RaggedStep

    return RaggedStep.of(keys, values, bounds, _shares(bounds[-1]))


def chosen_step(keys: Tensor, values: Tensor, bounds: tuple[int, ...], prefix: int) -> ChosenStep | None:
    """Attention over chosen pairs of a layer; None where plain torch is to be used."""
    if not _compiles(keys):
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
    if not _compiles(index.ranges):
        return None
    from kvz.kernels.cpu.plane_scores import PlaneScores

    return PlaneScores.of(index, rows, lengths)


def _shares(pairs: int) -> int:
    """Shares of a layer: a power of two, and the same for any number of threads, so that sums are too."""
    return 1 << (max(1, min(_MOST_SHARES, pairs // _LEAST_SHARE)).bit_length() - 1)


def is_to_be_compiled(device: torch.device, policy: str) -> bool:
    """Whether the kernel that a policy's first step needs has no machine code on this machine yet."""
    if device.type != "cpu" or not _has_numba():
        return False
    from kvz.kernels.cpu.compile import kept_folder

    return not any(kept_folder().rglob(f"{_KERNELS.get(policy, 'chosen_step')}.*.nbc"))


def _compiles(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in _DTYPES and _has_numba()


@cache
def _has_numba() -> bool:
    """Whether numba is here and works: it refuses a numpy that is too new for it."""
    try:
        import numba
    except ImportError:
        return False
    return not numba.config.DISABLE_JIT
