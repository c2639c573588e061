"""Every launch configuration of every kernel, for the tests that compile them and for the table in docs/kernels.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kvz.kernels.triton import merge_slots, ragged_attention
from kvz.kernels.triton.launch import Launch

__all__ = ["SOURCES", "all_launches"]

SOURCES: tuple[Callable[[], Iterable[Launch]], ...] = (ragged_attention.launches, merge_slots.launches)
"""A function a kernel's module. A new kernel is one file and one line here."""


def all_launches() -> Iterator[Launch]:
    """All of them, kernel after kernel."""
    for launches in SOURCES:
        yield from launches()
