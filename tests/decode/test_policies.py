"""Sparse policies against their formulas in float64, written from METHODS and not from the code."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.cache.pages import page_layer, rounded_outward
from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.config import POLICIES
from kvz.decode.decoding import MAKERS, dense_reading, sparse_reading
from kvz.decode.policies.exact_topk import ExactTopK
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.lowbit import LowBit
from kvz.decode.policies.quest import Quest
from kvz.decode.policies.selection import Units
from kvz.decode.policies.sparq import SparQ
from kvz.geometry import LayerShape
from tests.decode.ragged import GROUPS, LENGTHS, PREFIX, context, ragged, rows_of, run, scored
from tests.near import LOGITS, assert_near, rounding
from tests.reference import attention64


def hsa64(q: torch.Tensor, k: torch.Tensor, page: int, dims: int, scale: float) -> torch.Tensor:
    """Page scores of one head, step by step."""
    q, k = q.double(), k.double()
    size = q.abs().sum(0)
    order = sorted(range(q.shape[1]), key=lambda d: -float(size[d]))[:dims]
    scores = []
    for start in range(0, len(k), page):
        part = k[start : start + page]
        bound = [part[:, d].max() if q[:, d].sum() >= 0 else part[:, d].min() for d in order]
        scores.append(
            [sum(float(q[g, d]) * float(b) for d, b in zip(order, bound, strict=True)) for g in range(len(q))]
        )
    logits = torch.tensor(scores, dtype=torch.float64).T
    for g in range(len(q)):
        share = float(q[g, order].abs().sum() / q[g].abs().sum())
        logits[g] *= scale / math.sqrt(share)
    return torch.softmax(logits, 1).mean(0)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("page", [1, 3, 4, 8])
def test_hsa_equals_its_formula_in_every_head_and_for_every_token(group, page):
    torch.manual_seed(page)
    layer, q, budget = ragged(LENGTHS), torch.randn(4, 3, group, 16), 40
    seen, selection = scored(HSA(budget, page), layer, q)
    for head, length in enumerate(LENGTHS):
        for token in range(3):
            if length <= budget:
                assert rows_of(layer, selection, head, token) == list(range(length))
                continue
            dims = max(1, min(16, int(16 * page * budget / length)))
            want = hsa64(q[head, token], context(layer, head), page, dims, 0.25)
            assert_near(seen[0][head, token, : len(want)], want, 16 + len(want) + group, floor=0, size=LOGITS)
            best = want.topk(max(1, budget // 2 // page)).indices.tolist()
            tokens = sorted(t for p in best for t in range(p * page, min(length, (p + 1) * page)))
            assert rows_of(layer, selection, head, token) == tokens


def test_with_all_dimensions_and_one_query_a_page_score_bounds_its_tokens():
    torch.manual_seed(0)
    layer, q = ragged([40]), torch.randn(1, 1, 1, 16)
    seen, _ = scored(HSA(20, 8), layer, q)
    upper, lower = page_layer(layer, PREFIX, 8).head(0)
    bound = torch.where(q[0, 0, 0, :, None] >= 0, upper, lower)
    tokens = (layer.keys[PREFIX:] @ q[0, 0, 0]).view(5, 8)
    assert (q[0, 0, 0] @ bound >= tokens.amax(1) - rounding(16, LOGITS)).all()
    assert int(16 * 8 * 20 / 40) >= 16  # all dimensions
    assert_near(seen[0][0, 0], torch.softmax(q[0, 0, 0] @ bound * 0.25, 0), 16 + 5, floor=0, size=LOGITS)


@pytest.mark.parametrize("group", GROUPS)
def test_quest_equals_its_formula(group):
    torch.manual_seed(1)
    layer, q = ragged(LENGTHS), torch.randn(4, 2, group, 16)
    seen, selection = scored(Quest(40), layer, q)
    keys, qd = context(layer, 0), q[0, 1].double()
    pages = [keys[start : start + 16] for start in range(0, 200, 16)]
    want = torch.stack([torch.maximum(qd * p.amax(0), qd * p.amin(0)).sum(1) for p in pages], 1)
    want = torch.softmax(want * 0.25, 1).mean(0)
    assert_near(seen[0][0, 1, :13], want, 16 + 13 + group, floor=0, size=LOGITS)
    best = int(want.argmax())
    assert rows_of(layer, selection, 0, 1) == list(range(16 * best, min(200, 16 * best + 16)))
    assert rows_of(layer, selection, 2, 1) == list(range(30))


@pytest.mark.parametrize("group", GROUPS)
def test_sparq_and_exact_topk_equal_their_formulas(group):
    torch.manual_seed(2)
    layer, q = ragged(LENGTHS), torch.randn(4, 2, group, 16)
    sparq, exact = (scored(kind(40), layer, q)[1] for kind in (SparQ, ExactTopK))
    for head, length in ((0, 200), (1, 61)):
        keys, qd = context(layer, head), q[head, 0].double()
        dims = qd.abs().sum(0).topk(max(1, min(16, 16 * 40 // length))).indices
        share = qd[:, dims].abs().sum(1, keepdim=True) / qd.abs().sum(1, keepdim=True)
        weights = torch.softmax(qd[:, dims] @ keys[:, dims].T * 0.25 / share.sqrt(), 1)
        ranked = weights.mean(0)
        ranked[length - 5 :] += 2  # the newest t / 8 in any case
        want = ranked.topk(20).indices
        assert rows_of(layer, sparq, head, 0) == sorted(want.tolist())
        assert_near(sparq.rest.coverage[head, 0], weights[:, want].sum(1), dims.numel() + length, floor=0, size=LOGITS)
        true = torch.softmax(qd @ keys.T * 0.25, 1).mean(0)
        assert rows_of(layer, exact, head, 0) == sorted(true.topk(40).indices.tolist())
    assert_near(sparq.rest.coverage[2], torch.ones(2, group), 30)


def test_what_each_selector_pays():
    """Traffic in pairs: what is read to choose, what is chosen, and heads that the budget covers whole."""
    layer = ragged(LENGTHS)
    want = {
        HSA: 91 + (50 * int(16 * 4 * 40 / 200) / 32 + 20) + (16 * 16 / 32 + 20) - 61,
        Quest: 30 + (13 + 16) + (4 + 16),
        SparQ: 30 + (200 * 3 / 32 + 20) + (61 * 10 / 32 + 20),
        ExactTopK: 30 + 40 + 40,
    }
    for kind, pairs in want.items():
        selector = kind(40)
        selector.prepare(RaggedCache((layer,), 300), PREFIX)
        assert selector.read(0).pairs == pytest.approx(pairs), kind
    for share in (0.1, 0.3, 0.9):
        selector = LowBit(40, 4, share)
        selector.prepare(RaggedCache((layer,), 300), PREFIX)
        assert 30 + 2 * 38 < selector.read(0).pairs <= 30 + 2 * 40


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_pages_bound_their_tokens_and_no_others(lengths, size, seed):
    layer = ragged(lengths, 8, seed)
    pages = page_layer(layer, PREFIX, size)
    assert pages.extremes.shape == (16, sum(-(-n // size) for n in lengths))
    for head in range(len(lengths)):
        upper, lower = pages.head(head)
        keys = layer.keys[layer.bounds[head] + PREFIX : layer.bounds[head + 1]]
        for page in range(upper.shape[1]):
            part = keys[page * size : (page + 1) * size]
            assert torch.equal(part.amax(0), upper[:, page])
            assert torch.equal(part.amin(0), lower[:, page])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", [HSA, Quest, SparQ, ExactTopK, LowBit])
def test_a_budget_that_covers_everything_is_dense_bit_for_bit(kind, group):
    heads, layer = 3, ragged([50, 7, 0])
    cache = RaggedCache((layer,), 100)
    torch.manual_seed(3)
    parts = [torch.randn(heads * (group + 2), n, 16) for n in (6, 1, 1)]
    outs = []
    for selector in (kind(50), None):
        tail = Tail([LayerShape(heads, 16)], 20, torch.float32, torch.device("cpu"))
        reading = dense_reading(cache) if selector is None else sparse_reading("x", cache, PREFIX, selector)
        outs.append(run(reading.cache, reading.readers(), tail, parts, heads, group))
    assert all(torch.equal(a, b) for a, b in zip(*outs, strict=True))


@pytest.mark.parametrize("group", [1, 3])
def test_sparse_attention_is_exact_over_prefix_choice_and_tail(group):
    """Float64 attention over exactly those pairs; a short head is attended whole."""
    heads, layer = 2, ragged([120, 10])
    cache, selector = RaggedCache((layer,), 200), HSA(24, 4)
    reading = sparse_reading("hsa", cache, PREFIX, selector)
    tail = Tail([LayerShape(heads, 16)], 20, torch.float32, torch.device("cpu"))
    torch.manual_seed(4)
    parts = [torch.randn(heads * (group + 2), n, 16) for n in (5, 1)]
    _, got = run(reading.cache, reading.readers(), tail, parts, heads, group)
    q = parts[1][: heads * group, 0].view(heads, group, 16)
    for head in range(heads):
        first, last = layer.bounds[head], layer.bounds[head + 1]
        keys, values = layer.keys[first:last], layer.values[first:last]
        if head == 0:
            rows = torch.tensor(rows_of(layer, selector.choose(0, q[:, None], 0.25), 0, 0)) + PREFIX
            rows = torch.cat([torch.arange(PREFIX), rows])
            keys, values = keys[rows], values[rows]
        own = [torch.cat([part[heads * group + i * heads + head] for part in parts]) for i in (0, 1)]
        want, _ = attention64(q[head], torch.cat([keys, own[0]]), torch.cat([values, own[1]]), 0.25)
        assert_near(got[0, head * group : (head + 1) * group], want, 16 + len(keys) + len(own[0]))
    dims = int(16 * 4 * 24 / 120)
    assert reading.pairs_read() == PREFIX + 12 + 30 * dims / 32 + (PREFIX + 10)


def test_sparq_spreads_what_it_did_not_read_over_the_mean_value():
    layer = ragged([90])
    cache, selector = RaggedCache((layer,), 100), SparQ(16)
    reading = sparse_reading("sparq", cache, PREFIX, selector)
    tail = Tail([LayerShape(1, 16)], 4, torch.float32, torch.device("cpu"))
    torch.manual_seed(5)
    part = torch.randn(4, 1, 16)
    [got] = run(reading.cache, reading.readers(), tail, [part], 1, 2)
    q, keys, values = part[:2, 0], layer.keys[PREFIX:].double(), layer.values[PREFIX:].double()
    chosen = selector.choose(0, q[None, None], 0.25)
    rows = rows_of(layer, chosen, 0, 0)
    out, lse = attention64(q, keys[rows], values[rows], 0.25)
    share = chosen.rest.coverage[0, 0].double()
    mixed = share[:, None] * out + (1 - share)[:, None] * values.mean(0)
    around = attention64(
        q, torch.cat([layer.keys[:PREFIX], part[2]]), torch.cat([layer.values[:PREFIX], part[3]]), 0.25
    )
    weight = torch.softmax(torch.stack([lse - share.log(), around[1]]), 0)[..., None]
    assert_near(got[0], weight[0] * mixed + weight[1] * around[0], 16 + 90 + PREFIX + 1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget", [16, 40])
def test_a_head_without_context_pairs_attends_its_prefix_and_the_tail(policy, budget):
    heads, group, layer = 3, 2, ragged([200, 0, 7])
    cache = RaggedCache((layer,), 300)
    reading = MAKERS[policy](policy, cache, PREFIX, budget)
    tail = Tail([LayerShape(heads, 16)], 50, torch.float32, torch.device("cpu"))
    torch.manual_seed(6)
    parts = [torch.randn(heads * (group + 2), n, 16) for n in (9, 1)]
    _, got = run(reading.cache, reading.readers(), tail, parts, heads, group)
    assert torch.isfinite(got).all()
    q = parts[1][: heads * group, 0].view(heads, group, 16)
    for head in (1, 2):
        first, last = layer.bounds[head], layer.bounds[head + 1]
        own = [torch.cat([part[heads * group + i * heads + head] for part in parts]) for i in (0, 1)]
        keys, values = torch.cat([layer.keys[first:last], own[0]]), torch.cat([layer.values[first:last], own[1]])
        want, _ = attention64(q[head], keys, values, 0.25)
        assert_near(got[0, head * group : (head + 1) * group], want, 16 + len(keys) + len(own[0]))


def test_stored_pages_that_do_not_fit_the_budget_are_not_used():
    layer = ragged([400])
    layer = replace(layer, pages=page_layer(layer, PREFIX, 64))
    selector = HSA(32)
    selector.prepare(RaggedCache((layer,), 500), PREFIX)
    assert selector.read(0).pairs <= 33
    exact = HSA(128)
    exact.prepare(RaggedCache((layer,), 500), PREFIX)
    assert exact.read(0).pairs == 64 + 7 * 16 / 32  # one page of 64, and all bounds of 7 pages


def test_hsa_on_bounds_in_8_bits_equals_the_formula_on_them():
    torch.manual_seed(8)
    layer, q = ragged([200]), torch.randn(1, 1, 2, 16)
    rough = rounded_outward(page_layer(layer, PREFIX, 4))
    seen, _ = scored(HSA(20), replace(layer, pages=rough), q)
    upper, lower = (bound.double() for bound in rough.head(0))
    size, qd = q[0, 0].abs().sum(0), q[0, 0].double()
    dims = size.topk(int(2 * 16 * 4 * 20 / 200)).indices  # half the bytes a bound, so twice as many
    bounds = torch.where(q[0, 0].sum(0)[dims, None] >= 0, upper[dims], lower[dims])
    share = qd[:, dims].abs().sum(1, keepdim=True) / qd.abs().sum(1, keepdim=True)
    want = torch.softmax(qd[:, dims] @ bounds * 0.25 / share.sqrt(), 1).mean(0)
    assert_near(seen[0][0, 0], want, 16 + 50, floor=0, size=LOGITS)


def test_units_that_do_not_exist_are_never_chosen():
    """Where the weights of all but a few are zero, those that exist go first, and as many as the budget pays for."""
    layer = ragged([2000, 300])
    units = Units.of(layer, PREFIX, 1, [64, 64])
    scores = torch.zeros(2, 1, 2000)
    scores[:, :, 5] = 1
    selection = units.select(scores)
    assert selection.valid.sum(2).tolist() == [[64], [64]]
    assert (selection.rows[1, 0] >= layer.bounds[1] + PREFIX).all()
