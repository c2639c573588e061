"""Sparse policies against their formulas in float64, written from METHODS and not from the code."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.cache.pages import page_layer
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.cache.tail import Tail
from kvz.decode.policies.dense import DensePolicy
from kvz.decode.policies.exact_topk import ExactTopK
from kvz.decode.policies.hsa import HSA, hsa_scores, page_rows
from kvz.decode.policies.quest import Quest, quest_scores
from kvz.decode.policies.selection import Head
from kvz.decode.policies.sparq import SparQ, sparq_scores
from kvz.decode.policies.sparse import SparsePolicy
from kvz.geometry import LayerShape
from tests.reference import attention64

PREFIX = 3
GROUPS = [1, 3, 4, 8]


def ragged(lengths: list[int], dim: int = 16, seed: int = 0) -> RaggedLayer:
    """A layer whose heads keep `lengths` context pairs beside the prefix."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *(PREFIX + n for n in lengths)]).cumsum(0)
    keys, values = (torch.randn(int(offsets[-1]), dim, generator=generator) for _ in range(2))
    return RaggedLayer(keys, values, offsets, torch.zeros(len(keys), dtype=torch.int32))


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
@pytest.mark.parametrize(("length", "page", "dims"), [(50, 4, 16), (50, 4, 5), (7, 3, 1), (64, 1, 9), (5, 8, 2)])
def test_hsa_scores_equal_their_formula(group, length, page, dims):
    torch.manual_seed(length)
    layer, q = ragged([length, 9]), torch.randn(group, 16)
    pages = page_layer(layer, PREFIX, page)
    got = hsa_scores(q, *pages.head(0), dims, 0.25)
    want = hsa64(q, layer.keys[PREFIX : PREFIX + length], page, dims, 0.25)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-8)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_pages_bound_their_tokens_and_no_others(lengths, size, seed):
    layer = ragged(lengths, 8, seed)
    pages = page_layer(layer, PREFIX, size)
    assert pages.maxima.shape == pages.minima.shape == (8, sum(-(-n // size) for n in lengths))
    for head, length in enumerate(lengths):
        upper, lower = pages.head(head)
        keys = layer.keys[layer.bounds[head] + PREFIX : layer.bounds[head + 1]]
        for page in range(upper.shape[1]):
            part = keys[page_rows(torch.tensor([page]), size, length)]
            assert torch.equal(part.amax(0), upper[:, page])
            assert torch.equal(part.amin(0), lower[:, page])


def test_with_all_dimensions_and_one_query_a_page_score_bounds_its_tokens():
    torch.manual_seed(0)
    layer, q = ragged([40]), torch.randn(1, 16)
    upper, lower = page_layer(layer, PREFIX, 4).head(0)
    bound = torch.where(q[0, :, None] >= 0, upper, lower)
    tokens = (layer.keys[PREFIX:] @ q[0]).view(10, 4)
    assert (q[0] @ bound >= tokens.amax(1) - 1e-5).all()
    ranked = hsa_scores(q, upper, lower, 16, 0.25)
    torch.testing.assert_close(ranked, torch.softmax(q[0] @ bound * 0.25, 0))


@pytest.mark.parametrize("group", GROUPS)
def test_quest_and_sparq_scores_equal_their_formulas(group):
    torch.manual_seed(1)
    layer, q = ragged([45]), torch.randn(group, 16)
    k, qd = layer.keys[PREFIX:].double(), q.double()
    upper, lower = page_layer(layer, PREFIX, 16).head(0)
    want = torch.stack(
        [torch.maximum(qd * upper[:, p].double(), qd * lower[:, p].double()).sum(1) for p in range(3)], 1
    )
    got = quest_scores(q, upper, lower, 0.3)
    torch.testing.assert_close(got.double(), torch.softmax(want * 0.3, 1).mean(0), rtol=1e-5, atol=1e-8)
    dims = qd.abs().sum(0).topk(5).indices
    share = qd[:, dims].abs().sum(1, keepdim=True) / qd.abs().sum(1, keepdim=True)
    logits = qd[:, dims] @ k[:, dims].T * 0.3 / share.sqrt()
    torch.testing.assert_close(
        sparq_scores(q, layer.keys[PREFIX:], 5, 0.3).double(), torch.softmax(logits, 1), rtol=1e-5, atol=1e-8
    )


def test_what_each_selector_chooses_and_pays():
    torch.manual_seed(2)
    layer, q = ragged([200]), torch.randn(4, 16)
    cache = RaggedCache((layer,), 300)
    head = Head(0, 0, q, layer.keys[PREFIX:], 0.25)
    chosen = {}
    for selector in (HSA(40, 4), Quest(40), SparQ(40), ExactTopK(40)):
        selector.prepare(cache, PREFIX)
        chosen[type(selector).__name__] = selection = selector.choose(head)
        assert len(set(selection.rows.tolist())) == len(selection.rows)
        assert selection.rows.max() < 200
    true = torch.softmax(q.double() @ layer.keys[PREFIX:].double().T * 0.25, 1).mean(0)
    assert set(chosen["ExactTopK"].rows.tolist()) == set(true.topk(40).indices.tolist())
    assert len(chosen["HSA"].rows) == 20  # k2 = t / 2 tokens, in 5 pages
    assert chosen["HSA"].read == 50 * int(16 * 4 * 40 / 200) / 32
    assert len(chosen["Quest"].rows) in (16, 8)  # one page of 16, whichever it is
    assert chosen["Quest"].read == 13
    assert len(chosen["SparQ"].rows) == 20
    assert set(range(195, 200)) <= set(chosen["SparQ"].rows.tolist())
    assert (chosen["SparQ"].coverage <= 1).all()


def run(policy: DensePolicy, tail: Tail, parts: list[torch.Tensor], heads: int, group: int) -> list[torch.Tensor]:
    """Attention outputs of a question and of tokens after it, the same random inputs for every policy."""
    outs = []
    for part in parts:
        q, k, v = part[: heads * group], part[heads * group : heads * group + heads], part[-heads:]
        outs.append(policy.attend(0, q[None], k[None], v[None], 0.25))
        tail.advance(part.shape[1])
    return outs


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", [HSA, Quest, SparQ, ExactTopK])
def test_a_budget_that_covers_everything_is_dense_bit_for_bit(kind, group):
    heads, layer = 3, ragged([50, 7, 0])
    cache = RaggedCache((layer,), 100)
    torch.manual_seed(3)
    parts = [torch.randn(heads * (group + 2), n, 16) for n in (6, 1, 1)]
    outs = []
    for selector in (kind(50), None):
        tail = Tail([LayerShape(heads, 16)], 20, torch.float32, torch.device("cpu"))
        policy = DensePolicy(cache, tail)
        if selector is not None:
            selector.prepare(cache, PREFIX)
            policy = SparsePolicy(cache, tail, PREFIX, selector)
        outs.append(run(policy, tail, parts, heads, group))
    assert all(torch.equal(a, b) for a, b in zip(*outs, strict=True))


@pytest.mark.parametrize("group", [1, 3])
def test_sparse_attention_is_exact_over_prefix_choice_and_tail(group):
    """Float64 attention over exactly those pairs; a short head is attended whole."""
    heads, layer = 2, ragged([120, 10])
    cache, selector = RaggedCache((layer,), 200), HSA(24, 4)
    selector.prepare(cache, PREFIX)
    tail = Tail([LayerShape(heads, 16)], 20, torch.float32, torch.device("cpu"))
    policy = SparsePolicy(cache, tail, PREFIX, selector)
    torch.manual_seed(4)
    parts = [torch.randn(heads * (group + 2), n, 16) for n in (5, 1)]
    _, got = run(policy, tail, parts, heads, group)
    q = parts[1][: heads * group, 0].view(heads, group, 16)
    for head in range(heads):
        first, last = layer.bounds[head], layer.bounds[head + 1]
        keys, values = layer.keys[first:last], layer.values[first:last]
        if head == 0:
            rows = selector.choose(Head(0, 0, q[0], keys[PREFIX:], 0.25)).rows + PREFIX
            rows = torch.cat([torch.arange(PREFIX), rows])
            keys, values = keys[rows], values[rows]
        own = [torch.cat([part[heads * group + i * heads + head] for part in parts]) for i in (0, 1)]
        want, _ = attention64(q[head], torch.cat([keys, own[0]]), torch.cat([values, own[1]]), 0.25)
        torch.testing.assert_close(got[0, 0, head * group : (head + 1) * group].double(), want, rtol=1e-5, atol=1e-6)
    dims = int(16 * 4 * 24 / 120)
    assert policy.steps == 1
    assert policy.pairs_read == PREFIX + 12 + 30 * dims / 32 + (PREFIX + 10)


def test_sparq_spreads_what_it_did_not_read_over_the_mean_value():
    layer = ragged([90])
    cache, selector = RaggedCache((layer,), 100), SparQ(16)
    selector.prepare(cache, PREFIX)
    tail = Tail([LayerShape(1, 16)], 4, torch.float32, torch.device("cpu"))
    torch.manual_seed(5)
    part = torch.randn(4, 1, 16)
    [got] = run(SparsePolicy(cache, tail, PREFIX, selector), tail, [part], 1, 2)
    q, keys, values = part[:2, 0], layer.keys[PREFIX:].double(), layer.values[PREFIX:].double()
    chosen = selector.choose(Head(0, 0, q, layer.keys[PREFIX:], 0.25))
    out, lse = attention64(q, keys[chosen.rows], values[chosen.rows], 0.25)
    share = chosen.coverage.double()
    mixed = share[:, None] * out + (1 - share)[:, None] * values.mean(0)
    around = attention64(
        q, torch.cat([layer.keys[:PREFIX], part[2]]), torch.cat([layer.values[:PREFIX], part[3]]), 0.25
    )
    weight = torch.softmax(torch.stack([lse - share.log(), around[1]]), 0)[..., None]
    torch.testing.assert_close(got[0, 0].double(), weight[0] * mixed + weight[1] * around[0], rtol=1e-4, atol=1e-5)
