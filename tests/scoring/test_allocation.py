"""Allocations: exact counts, guarantees, and who wins; by property and against their definitions."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.errors import BudgetTooSmall, ScoringError, UsageError
from kvz.scoring.allocation import AdaKV, Nonuniform, Uniform
from kvz.scoring.budget import Budget
from kvz.scoring.head_allocation import Head
from kvz.scoring.pyramid import Pyramid
from kvz.scoring.selection import select
from kvz.scoring.sharing import ALLOCATIONS, make_allocation
from tests.scoring.demands import demand_of, scores_of

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 60))
TIES = st.sampled_from([1, 3, 1000])


def total_of(allocation: str, budget: Budget, layers: int, heads: int, length: int) -> int:
    """Pairs that an allocation keeps in all: rounded over all heads, over a layer's, or over one."""
    if allocation in ("nonuniform", "head"):
        return budget.of(layers * heads, length)
    return layers * budget.of(heads, length) if allocation == "adakv" else layers * heads * budget.of(1, length)


@settings(max_examples=200, deadline=None)
@given(
    shape=SHAPES, ratio=st.floats(0.01, 1), protected=st.sets(st.integers(0, 59)), seed=st.integers(0, 99), ties=TIES
)
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_counts_are_exact_and_guarantees_hold(allocation, shape, ratio, protected, seed, ties):
    layers, heads, length = shape
    spans = tuple(sorted(p for p in protected if p < length))
    scores, budget = scores_of(shape, seed, ties), Budget(ratio)
    demand, chosen = demand_of(budget, layers, heads, length, spans), make_allocation(allocation)
    total, least = total_of(allocation, budget, layers, heads, length), max(1, len(spans))
    if total < least * layers * heads:
        with pytest.raises(BudgetTooSmall, match=f"at least {least} of"):
            select(scores, demand, chosen)
        return
    mask = select(scores, demand, chosen)
    assert mask.shape == scores.shape
    assert mask.sum() == total
    assert (mask.sum(1) >= least).all()
    assert mask[:, list(spans)].all()
    assert torch.equal(mask, select(scores, demand, chosen))
    if allocation != "head":  # inside a head the best are kept, protected ones aside
        free = ~demand.protected
        kept = scores.masked_fill(~mask | ~free, math.inf).amin(1)
        assert (kept >= scores.masked_fill(mask, -math.inf).amax(1)).all()


@settings(max_examples=150, deadline=None)
@given(shape=SHAPES, ratio=st.floats(0.01, 1), floor=st.floats(0, 1), seed=st.integers(0, 99), ties=TIES)
@pytest.mark.parametrize("kind", [Nonuniform, AdaKV])
def test_a_floor_is_kept_and_what_lies_above_it_beats_all_that_was_evicted(kind, shape, ratio, floor, seed, ties):
    layers, heads, length = shape
    scores, demand = scores_of(shape, seed, ties), demand_of(Budget(ratio), layers, heads, length)
    part = layers * heads if kind is Nonuniform else heads
    count = Budget(ratio).of(part, length)
    least = max(1, math.floor(Fraction(str(floor)) * count / part))
    if count < part * least:
        return
    mask = select(scores, demand, kind(floor))
    for first in range(0, layers * heads, part):
        kept, ranked = mask[first : first + part], scores[first : first + part]
        assert kept.sum() == count
        assert (kept.sum(1) >= least).all()
        above = kept.sum(1) > least
        if above.any() and not kept.all():
            lowest = ranked.masked_fill(~kept, math.inf).amin(1)[above].min()
            assert lowest >= ranked.masked_fill(kept, -math.inf).max()


def test_ties_go_to_the_earlier_position_in_any_head():
    mask = select(torch.zeros(4, 10), demand_of(Budget(ratio=0.5), 2, 2, 10), Nonuniform())
    assert mask[:, :5].all()
    assert not mask[:, 5:].any()


def test_ties_at_one_position_go_to_the_lower_layer_then_the_lower_head():
    mask = select(torch.zeros(4, 10), demand_of(Budget(ratio=0.45), 2, 2, 10), Nonuniform())
    assert mask[:, :4].all()
    assert mask[:, 4].tolist() == [True, True, False, False]


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_a_budget_in_tokens_and_one_larger_than_the_context(allocation):
    scores, chosen = torch.rand(6, 40), make_allocation(allocation)
    assert select(scores, demand_of(Budget(tokens=7), 3, 2, 40), chosen).sum() == 7 * 6
    assert select(scores, demand_of(Budget(tokens=1), 3, 2, 40), chosen).sum() == 6
    assert select(scores, demand_of(Budget(tokens=4000), 3, 2, 40), chosen).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_no_numbers_name_the_layer(bad):
    scores = torch.rand(8, 9)
    scores[5, 3] = bad
    with pytest.raises(ScoringError, match="layer 2"):
        select(scores, demand_of(Budget(ratio=0.5), 4, 2, 9), Nonuniform())


def test_options_that_an_allocation_does_not_take():
    with pytest.raises(UsageError, match="no allocation"):
        make_allocation("best")
    with pytest.raises(UsageError, match="'uniform' does not take floor"):
        make_allocation("uniform", floor=0.2)
    for floor in (-0.1, 1.1, float("nan")):
        for kind in (Nonuniform, AdaKV):
            with pytest.raises(UsageError, match="floor"):
                kind(floor)


def test_adakv_gives_every_layer_the_same():
    scores = torch.rand(6, 50) + torch.arange(6)[:, None]
    mask = select(scores, demand_of(Budget(ratio=0.3), 3, 2, 50), AdaKV())
    assert mask.view(3, -1).sum(1).tolist() == [30, 30, 30]
    assert mask.sum(1).tolist() == [3, 27] * 3  # 0.2 of 15, and the rest for the better head


def paper_counts(cap: int, window: int, layers: int) -> list[int]:
    """PyramidKV as METHODS has it, its step rounded down."""
    mean = cap - window
    least = mean // 20
    largest = 2 * mean - least
    return [largest - layer * ((largest - least) // (layers - 1)) for layer in range(layers)]


@pytest.mark.parametrize(("cap", "layers"), [(208, 20), (208, 5), (408, 39), (128, 2)])
def test_pyramid_is_the_papers_where_its_step_is_whole(cap, layers):
    want = paper_counts(cap, 8, layers)
    assert sum(want) == layers * (cap - 8), "choose a case in which nothing is rounded"
    mask = select(torch.rand(layers, 1000), demand_of(Budget(tokens=cap), layers, 1, 1000, tuple(range(8))), Pyramid())
    assert mask.sum(1).tolist() == [8 + count for count in want]


@settings(max_examples=100, deadline=None)
@given(mean=st.integers(1, 400), layers=st.integers(1, 40))
def test_pyramid_falls_linearly_and_sums_up(mean, layers):
    counts = Pyramid.counts(mean, layers, 1)
    assert sum(counts) == mean * layers
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == (max(1, mean // 20) if layers > 1 else mean)
    steps = [a - b for a, b in pairwise(counts)]
    assert max(steps, default=0) - min(steps, default=0) <= 2
    if layers > 1 and mean >= 20:
        paper = paper_counts(mean, 0, layers)
        assert all(abs(ours - theirs) < layers for ours, theirs in zip(counts, paper, strict=True))


def test_pyramid_is_uniform_where_the_context_is_too_short_for_its_largest_layer():
    mask = select(torch.rand(6, 100), demand_of(Budget(ratio=0.7), 3, 2, 100, (0, 1)), Pyramid())
    assert mask.sum(1).tolist() == [70] * 6


def test_whole_heads_by_their_largest_score():
    scores = torch.rand(4, 20)
    scores[2, 7], scores[1, 0] = 9, 8
    mask = select(scores, demand_of(Budget(tokens=12), 2, 2, 20, (0, 18, 19)), Head())
    assert mask.sum(1).tolist() == [3, 20, 20, 5] or mask.sum(1).tolist() == [5, 20, 20, 3]
    for row in (0, 3):
        assert mask[row, [0, 18, 19]].all()


def test_the_head_a_budget_ends_in_keeps_its_most_recent_pairs_among_equals():
    scores = torch.tensor([0.5, 0.9, 0.9])[:, None].expand(3, 10).contiguous()
    mask = select(scores, demand_of(Budget(tokens=6), 3, 1, 10, (0,)), Head())
    assert mask.sum(1).tolist() == [1, 10, 7]  # of equal heads the first
    assert mask[2].nonzero()[:, 0].tolist() == [0, 4, 5, 6, 7, 8, 9]


def test_uniform_is_each_heads_best():
    scores = scores_of((2, 2, 30), 3, 1000)
    mask = select(scores, demand_of(Budget(ratio=0.3), 2, 2, 30), Uniform())
    for row in range(4):
        assert set(scores[row].topk(9).values.tolist()) == set(scores[row][mask[row]].tolist())
