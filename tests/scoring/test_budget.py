from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.errors import ScoringError, UsageError
from kvz.scoring.allocation import ALLOCATIONS, Nonuniform, Uniform, make_allocation, select
from kvz.scoring.budget import Budget

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 60))


def scores_of(shape: tuple[int, int, int], seed: int, distinct: int) -> torch.Tensor:
    """Random scores with many ties when `distinct` is small."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, distinct, shape, generator=generator).float() / distinct


@settings(max_examples=150, deadline=None)
@given(shape=SHAPES, ratio=st.floats(0.01, 1), seed=st.integers(0, 99), distinct=st.sampled_from([1, 3, 1000]))
def test_nonuniform_keeps_the_best_pairs_and_exactly_so_many(shape, ratio, seed, distinct):
    layers, heads, length = shape
    scores, want = scores_of(shape, seed, distinct), round(Fraction(str(ratio)) * layers * heads * length)
    if want < layers * heads:
        with pytest.raises(UsageError, match="the least is"):
            select(scores, Budget(ratio), Nonuniform())
        return
    mask = select(scores, Budget(ratio), Nonuniform())
    assert mask.sum() == want
    assert (mask.sum(2) >= 1).all()
    assert mask.gather(2, scores.argmax(2, keepdim=True)).all()
    best = torch.zeros_like(mask).scatter(2, scores.argmax(2, keepdim=True), True)
    chosen, left = scores[mask & ~best], scores[~mask]
    if len(chosen) and len(left):
        assert chosen.min() >= left.max()
    assert torch.equal(mask, select(scores, Budget(ratio), Nonuniform()))


@settings(max_examples=100, deadline=None)
@given(shape=SHAPES, ratio=st.floats(0.01, 1), seed=st.integers(0, 99), distinct=st.sampled_from([1, 3, 1000]))
def test_uniform_keeps_the_best_pairs_of_each_head(shape, ratio, seed, distinct):
    scores, want = scores_of(shape, seed, distinct), round(Fraction(str(ratio)) * shape[2])
    if not want:
        with pytest.raises(UsageError, match="the least is"):
            select(scores, Budget(ratio), Uniform())
        return
    mask = select(scores, Budget(ratio), Uniform())
    assert (mask.sum(2) == want).all()
    if want < shape[2]:
        kept = scores.masked_fill(~mask, math.inf).amin(2)
        assert (kept >= scores.masked_fill(mask, -math.inf).amax(2)).all()


def test_the_count_is_that_of_exact_arithmetic():
    """In floating point 0.03 * 90 * 85 is a little under 229.5."""
    assert Budget(ratio=0.03).of(90, 85) == 230
    assert Budget(ratio=0.3).of(90, 6500) == 175500


def test_ties_go_to_the_earlier_position_in_any_head():
    mask = select(torch.zeros(2, 2, 10), Budget(ratio=0.5), Nonuniform())
    assert mask[:, :, :5].all()
    assert not mask[:, :, 5:].any()


def test_the_least_ratio_named_is_one_that_works():
    scores = torch.rand(3, 2, 700)
    with pytest.raises(UsageError, match="the least is") as caught:
        select(scores, Budget(ratio=0.0001), Nonuniform())
    least = float(re.search(r"the least is ([\d.e-]+)", str(caught.value))[1])
    assert select(scores, Budget(ratio=least), Nonuniform()).sum() >= 6


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_a_budget_in_tokens_and_one_larger_than_the_context(allocation):
    scores = torch.rand(3, 2, 40)
    assert select(scores, Budget(tokens=7), make_allocation(allocation)).sum() == 7 * 6
    assert select(scores, Budget(tokens=1), make_allocation(allocation)).sum() == 6
    assert select(scores, Budget(tokens=4000), make_allocation(allocation)).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_no_numbers_name_the_layer(bad):
    scores = torch.rand(4, 2, 9)
    scores[2, 1, 3] = bad
    with pytest.raises(ScoringError, match="layer 2"):
        select(scores, Budget(ratio=0.5), Nonuniform())


@pytest.mark.parametrize("ratio", [0, -0.1, 1.0001, float("nan"), float("inf")])
def test_ratios_out_of_range(ratio):
    with pytest.raises(UsageError, match="share of pairs to keep"):
        Budget(ratio=ratio)


def test_either_ratio_or_tokens():
    for options in ({}, {"ratio": 0.3, "tokens": 5}, {"tokens": 0}, {"tokens": -3}):
        with pytest.raises(UsageError):
            Budget(**options)
    with pytest.raises(UsageError, match="no allocation"):
        make_allocation("best")
    with pytest.raises(UsageError, match="'uniform' does not take floor"):
        make_allocation("uniform", floor=0.2)
    for floor in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="floor"):
            Nonuniform(floor)


@settings(max_examples=100, deadline=None)
@given(shape=SHAPES, ratio=st.floats(0.1, 1), floor=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_floor_is_kept_in_every_head_and_the_count_stays_exact(shape, ratio, floor, seed):
    layers, heads, length = shape
    scores, budget = scores_of(shape, seed, 1000), Budget(ratio)
    count = budget.of(layers * heads, length)
    if count < layers * heads * max(1, math.floor(Fraction(str(floor)) * count / (layers * heads))):
        return
    mask = select(scores, budget, Nonuniform(floor))
    least = max(1, math.floor(Fraction(str(floor)) * count / (layers * heads)))
    assert mask.sum() == count
    assert (mask.sum(2) >= least).all()
    kept = scores.masked_fill(~mask, math.inf).amin(2)
    left = scores.masked_fill(mask, -math.inf).amax(2)
    assert (kept >= left).all()  # each head keeps its own best
    above_floor = mask.sum(2) > least
    if above_floor.any():
        assert kept[above_floor].min() >= left.max()  # what a head has above its floor beats all that was evicted


@settings(max_examples=100, deadline=None)
@given(shape=SHAPES, ratio=st.floats(0.1, 1), recent=st.integers(0, 20), seed=st.integers(0, 99))
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_the_most_recent_are_kept_and_count(allocation, shape, ratio, recent, seed):
    layers, heads, length = shape
    recent = min(recent, length)
    scores, budget = scores_of(shape, seed, 1000), Budget(ratio)
    chosen = make_allocation(allocation)
    whole, per_head = budget.of(layers * heads, length), budget.of(1, length)
    enough = whole >= layers * heads * max(1, recent) if allocation == "nonuniform" else per_head >= max(1, recent)
    if not enough:
        with pytest.raises(UsageError, match="the least is"):
            select(scores, budget, chosen, recent)
        return
    mask = select(scores, budget, chosen, recent)
    assert mask[:, :, length - recent :].all()
    assert mask.sum() == (whole if allocation == "nonuniform" else layers * heads * per_head)
