"""RocketKV's arithmetic against the paper's values, and its adaptation to an archive."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvz.decode.budget import RocketBudget, head_budget, rocket_budget
from kvz.errors import UsageError


@pytest.mark.parametrize(
    ("prompt", "budget", "want"),
    [
        (16000, 256, RocketBudget(1593, 1465, 3, 61, 128)),
        (32000, 1024, RocketBudget(5769, 5641, 3, 68, 512)),
        (96000, 256, RocketBudget(1401, 1273, 3, 70, 128)),
        (8192, 4096, RocketBudget(6913, 6785, 1, 75, 2048)),
    ],
)
def test_the_papers_table(prompt, budget, want):
    assert rocket_budget(prompt, 128, budget, 128) == want


@given(st.integers(1, 200_000), st.integers(0, 512), st.integers(2, 8192), st.sampled_from([64, 128, 256]))
def test_both_stages_stay_within_what_the_paper_says(prompt, new, budget, dim):
    split = rocket_budget(prompt, new, budget, dim)
    length = prompt + new
    ratio = max(1, length / budget)
    exponent = min(0.2 + 0.06 * math.log2(ratio), 0.8)
    assert split.capacity <= length / ratio**exponent < split.capacity + 1
    assert split.tokens == budget // 2
    assert 1 <= split.dims <= dim
    second = max(1, split.capacity / budget)
    assert split.page <= second
    assert split.page in (1, math.ceil(math.sqrt(second)))
    if split.dims > 1:  # the bounds read are those of at most t / 2 pairs
        assert split.capacity / split.page * split.dims <= max(budget, split.capacity / split.page) * dim + 1e-6


@given(
    st.integers(1, 50_000), st.integers(1, 16), st.integers(2, 4096), st.sampled_from([64, 128, 256]),
    st.sampled_from([16, 8]),
)  # fmt: skip
def test_a_heads_traffic_stays_within_the_budget(length, page, budget, dim, bits):
    split = head_budget(length, page, budget, dim, bits)
    read = split.pairs_read(length, page, dim, bits)
    assert split.whole == (length <= budget)
    if split.whole:
        assert read == length
        return
    least = math.ceil(length / page) / (2 * dim) + page  # one dimension, one page
    rounding = split.dims / (2 * dim)  # the last page may be short
    assert read <= max(budget, least + budget / 2, least) + rounding + 1e-9


def test_a_budget_that_selects_nothing():
    with pytest.raises(UsageError, match="2 or more"):
        rocket_budget(1000, 10, 1, 128)
