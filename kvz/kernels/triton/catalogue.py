"""Every launch configuration of every kernel, for the tests that compile them and for the table in docs/kernels.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kvz.kernels.triton import (
    attention_sum,
    group_mean,
    kvzip_score,
    merge_slots,
    merge_splits,
    page_bounds,
    page_scores,
    plane_scores,
    query_rows,
    ragged_attention,
    select_top,
    sparse_attention,
)
from kvz.kernels.triton.launch import Launch

__all__ = ["SOURCES", "all_launches"]

SOURCES: tuple[Callable[[], Iterable[Launch]], ...] = (
    ragged_attention.launches,
    merge_slots.launches,
    page_bounds.launches,
    query_rows.launches,
    page_scores.launches,
    plane_scores.launches,
    group_mean.launches,
    select_top.launches,
    sparse_attention.launches,
    merge_splits.launches,
    kvzip_score.launches,
    attention_sum.launches,
)
"""A function a kernel's module. A new kernel is one file and one line here."""


def all_launches() -> Iterator[Launch]:
    """All of them, kernel after kernel."""
    for launches in SOURCES:
        yield from launches()
