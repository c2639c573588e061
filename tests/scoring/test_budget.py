from __future__ import annotations

import pytest

from kvz.errors import UsageError
from kvz.scoring.budget import Budget


def test_the_count_is_that_of_exact_arithmetic():
    """In floating point 0.03 * 90 * 85 is a little under 229.5."""
    assert Budget(ratio=0.03).of(90, 85) == 230
    assert Budget(ratio=0.3).of(90, 6500) == 175500


@pytest.mark.parametrize("ratio", [0, -0.1, 1.0001, float("nan"), float("inf")])
def test_ratios_out_of_range(ratio):
    with pytest.raises(UsageError, match="share of pairs to keep"):
        Budget(ratio=ratio)


def test_either_ratio_or_tokens():
    for options in ({}, {"ratio": 0.3, "tokens": 5}, {"tokens": 0}, {"tokens": -3}):
        with pytest.raises(UsageError):
            Budget(**options)
