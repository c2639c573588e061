"""Shares as shades."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvz.report.kept import bins_of
from kvz.report.shades import STEPS, Scale, scale_of


@pytest.mark.parametrize(("largest", "top"), [(0.0, 0.1), (0.04, 0.1), (0.3, 0.3), (0.31, 0.4), (1.0, 1.0)])
def test_a_scale_ends_at_the_next_tenth(largest: float, top: float) -> None:
    assert scale_of([largest / 2, largest]).top == top


@pytest.mark.parametrize(
    ("share", "step"), [(0, 0), (0.001, 1), (0.04, 1), (0.0401, 2), (0.2, 5), (0.39, 10), (0.4, 10)]
)
def test_only_nothing_has_no_shade(share: float, step: int) -> None:
    assert Scale(0.4).step(share) == step


@given(st.lists(st.floats(0, 1), min_size=1))
def test_more_is_never_lighter_and_steps_are_what_the_legend_says(shares: list[float]) -> None:
    scale = scale_of(shares)
    steps = [scale.step(share) for share in sorted(shares)]
    assert steps == sorted(steps)
    assert 0 <= steps[0] <= steps[-1] <= STEPS
    bounds = [float(percent) / 100 for _, percent in scale.legend]
    for share in shares:
        step = scale.step(share)
        assert bounds[max(0, step - 1)] - 1e-6 <= share <= bounds[step] + 1e-6


@given(st.data(), st.integers(1, 700))
def test_bins_hold_every_token_once(data: st.DataObject, total: int) -> None:
    heads = data.draw(st.lists(st.integers(0, total), max_size=50))
    bins = bins_of(heads, total)
    assert [b.first for b in bins] == [0, *(b.last + 1 for b in bins[:-1])]
    assert bins[0].last == 0
    assert bins[-1].last == total
    assert [b.tokens for b in bins] == [sum(b.first <= count <= b.last for count in heads) for b in bins]
    assert len(bins) <= 46
