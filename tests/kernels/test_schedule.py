"""A schedule covers every pair once, and leaves no multiprocessor with much more to do than the others."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.kernels.schedule import LEAST_SHARE, block_rows, plan_schedule

LENGTHS = st.lists(st.one_of(st.just(0), st.integers(1, 200), st.integers(1000, 100_000)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 140), st.integers(1, 4), st.integers(1, 40))
def test_every_pair_is_in_one_segment(lengths: list[int], chips: int, each: int, row_blocks: int) -> None:
    bounds = [0, *accumulate(lengths)]
    schedule = plan_schedule(bounds, chips, each, row_blocks)
    segments = schedule.segments.tolist()
    assert [(a, b) for _, a, b, _ in segments if a >= b] == []
    ends = [0, *(b for _, _, b, _ in segments)]
    assert [a for _, a, _, _ in segments] == ends[:-1]
    assert ends[-1] == bounds[-1]
    assert all(bounds[head] <= a and b <= bounds[head + 1] for head, a, b, _ in segments)


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(1, 140), st.integers(1, 4))
def test_slots_belong_to_one_segment_each_and_to_its_head(lengths: list[int], chips: int, each: int) -> None:
    schedule = plan_schedule([0, *accumulate(lengths)], chips, each)
    of_head: list[list[int]] = [[] for _ in lengths]
    for head, _, _, slot in schedule.segments.tolist():
        of_head[head].append(slot)
    assert of_head == [list(range(a, b)) for a, b in pairwise(schedule.heads.tolist())]
    assert schedule.heads[-1] == schedule.slots
    assert schedule.most_slots == max(map(len, of_head))


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(1, 140), st.integers(1, 4), st.integers(1, 40))
def test_programs_own_equal_shares_that_are_worth_it(
    lengths: list[int], chips: int, each: int, row_blocks: int
) -> None:
    schedule = plan_schedule([0, *accumulate(lengths)], chips, each, row_blocks)
    owned = [b - a for _, a, b, _ in schedule.segments.tolist()]
    programs = schedule.programs.tolist()
    assert programs[0] == 0
    assert programs[-1] == len(owned)
    shares = [sum(owned[a:b]) for a, b in pairwise(programs)]
    assert max(shares, default=0) - min(shares, default=0) <= 1
    assert min(shares, default=0) >= min(LEAST_SHARE, sum(lengths))


@pytest.mark.parametrize("chips", [132, 108])
@pytest.mark.parametrize("row_blocks", [1, 2, 3, 16])
@pytest.mark.parametrize(
    "lengths",
    [
        # 96 K tokens at r = 0.3: 230 400 pairs over 8 heads
        [640, 900, 2_000, 8_000, 21_860, 63_000, 64_000, 70_000],
        [90_000, 90_000, 20_000, 20_000, 6_000, 2_500, 1_000, 900],
        # 8 K tokens at r = 0.3: 9 830 pairs over 4 heads
        [80, 250, 1_500, 8_000],
        [2_457, 2_458, 2_457, 2_458],
    ],
)
def test_no_multiprocessor_has_a_tenth_more_than_the_mean(lengths: list[int], row_blocks: int, chips: int) -> None:
    assert 1 <= plan_schedule([0, *accumulate(lengths)], chips, 2, row_blocks).balance(chips) <= 1.10


def test_balance_is_what_the_busiest_does_over_the_mean() -> None:
    one = plan_schedule([0, 600], 1, 1)
    assert one.balance(1) == 1
    assert one.balance(4) == 4
    assert plan_schedule([0, 600], 3, 1).balance(2) == pytest.approx(400 / 300)


def test_a_tiny_layer_uses_few_programs() -> None:
    assert plan_schedule([0, 10, 30], 132).program_count == 1
    assert plan_schedule([0, 10, 10 * LEAST_SHARE], 132).program_count == 10


def test_a_layer_without_pairs_uses_none() -> None:
    schedule = plan_schedule([0, 0, 0], 132)
    assert (schedule.program_count, schedule.slots, schedule.most_slots) == (0, 0, 0)
    assert schedule.balance(132) == 1


def test_bounds_that_fall_are_refused() -> None:
    with pytest.raises(ValueError, match="bounds"):
        plan_schedule([0, 5, 4], 2)


@pytest.mark.parametrize(
    ("rows", "dim", "bits", "block"),
    [(1, 64, 16, 16), (17, 64, 16, 32), (64, 128, 16, 64), (65, 128, 16, 128), (4096, 128, 16, 128),
     (4096, 256, 16, 64), (4096, 128, 8, 64), (4096, 256, 4, 32)],
)  # fmt: skip
def test_blocks_of_rows(rows: int, dim: int, bits: int, block: int) -> None:
    assert block_rows(rows, dim, bits) == block


def real_lengths(tokens: int) -> list[list[int]]:
    """Pairs of each head, layer by layer, of an archive at r = 0.3, as many as a context of `tokens` would have."""
    archive = json.loads((Path(__file__).parent / "kept.json").read_text())
    return [[tokens * kept // archive["context_tokens"] for kept in layer] for layer in archive["kept"]]


@pytest.mark.parametrize("chips", [108, 132])
@pytest.mark.parametrize("tokens", [65536, 98304])
@pytest.mark.parametrize("row_blocks", [1, 3])
def test_no_multiprocessor_waits_for_the_longest_head_of_a_real_archive(
    tokens: int, row_blocks: int, chips: int
) -> None:
    layers = real_lengths(tokens)
    assert max(max(layer) / sum(layer) for layer in layers) > 0.6  # one head has most of its layer
    for lengths in layers:
        assert plan_schedule([0, *accumulate(lengths)], chips, 2, row_blocks).balance(chips) <= 1.10
