"""The interval of a score holds the true mean nearly as often as it says, however few contexts there are."""

from __future__ import annotations

import random
from math import comb
from statistics import fmean

import pytest

from kvz.bench.mean_interval import mean_interval, t_quantile


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (29, 2.045)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, table: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(table, rel=0.01)


def test_two_contexts_say_hardly_anything() -> None:
    assert mean_interval([0.2, 0.4]) == (0.0, 1.0)
    assert mean_interval([0.3]) is None


def test_scores_that_are_all_the_same_are_not_certain() -> None:
    assert mean_interval([1.0] * 3) == pytest.approx((0.4385, 1.0), abs=1e-4)  # Wilson's for 3 of 3
    assert mean_interval([0.0] * 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    low, high = mean_interval([0.0] * 1000) or (1.0, 1.0)
    assert (low, high) == pytest.approx((0.0, 0.0), abs=0.005)


def test_a_hand_made_one() -> None:
    # mean 0.5, standard deviation 0.1291, over sqrt(4): 3.182 * 0.06455
    assert mean_interval([0.35, 0.45, 0.55, 0.65]) == pytest.approx((0.2946, 0.7054), abs=0.003)


@pytest.mark.parametrize("contexts", [2, 3, 4, 5, 7, 10, 20, 50])
def test_it_covers_the_mean_of_yes_and_no(contexts: int) -> None:
    """Exactly, over all outcomes of so many contexts with one question each: 87 % or more, whatever the mean is."""
    bounds = [mean_interval([1.0] * hits + [0.0] * (contexts - hits)) or (0.0, 1.0) for hits in range(contexts + 1)]
    for right in (n / 100 for n in range(1, 100)):
        covered = sum(
            comb(contexts, hits) * right**hits * (1 - right) ** (contexts - hits)
            for hits, (low, high) in enumerate(bounds)
            if low <= right <= high
        )
        assert covered > 0.87, right


def test_it_covers_no_more_often_than_it_says_where_scores_are_fine() -> None:
    draw = random.Random(0)
    hits = 0
    for _ in range(2000):
        low, high = mean_interval([fmean(draw.random() for _ in range(5)) for _ in range(6)]) or (0.0, 1.0)
        hits += low <= 0.5 <= high
    assert 0.93 < hits / 2000 < 0.97
