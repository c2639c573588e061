from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.kernels.attention import attention, grouped_attention, plain_attention
from kvz.kernels.attention_sum import column_sum_heads
from kvz.kernels.kvzip_score import column_max, column_max_heads, largest_logit_heads
from kvz.kernels.merge import merge_parts, merge_stacked
from kvz.kernels.ragged_attention import plan_ragged, ragged_attention
from tests.near import LOGITS, assert_near
from tests.reference import attention64

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
INNER = 3  # roundings of a kernel in 16 bits: weights, sums of blocks of keys, and the output


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", [attention, plain_attention])
@pytest.mark.parametrize(("rows", "keys", "causal"), [(1, 1, False), (3, 700, False), (300, 40, False), (33, 33, True)])
def test_attention_and_its_lse(kernel, dtype, rows, keys, causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 64).to(dtype) for n in (rows, keys, keys))
    out, lse = kernel(q, k, v, 0.11, causal)
    mask = torch.ones(rows, keys, dtype=torch.bool).tril() if causal else None
    want, want_lse = attention64(q, k, v, 0.11, mask)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    assert_near(out, want, 64 + keys, rounds=INNER)
    assert_near(lse, want_lse, 64 + keys, dtype=dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_a_gpu(dtype, causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 33, 64, device="cuda").to(dtype) for _ in range(3))
    out, lse = attention(q, k, v, 0.11, causal)
    mask = torch.ones(33, 33, dtype=torch.bool, device="cuda").tril() if causal else None
    want, want_lse = attention64(q, k, v, 0.11, mask)
    assert_near(out, want, 64 + 33, rounds=INNER)
    assert_near(lse, want_lse, 64 + 33, dtype=dtype)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_groups_share_their_kv_head(group, causal):
    torch.manual_seed(1)
    heads, n, dim = 2, 17, 32
    q, k, v = torch.randn(heads, group, n, dim), torch.randn(heads, n, dim), torch.randn(heads, n, dim)
    out, lse = grouped_attention(q, k, v, 0.2, causal)
    mask = torch.ones(n, n, dtype=torch.bool).tril() if causal else None
    for head in range(heads):
        want, want_lse = attention64(q[head], k[head], v[head], 0.2, mask)
        assert_near(out[head].view(group, n, dim), want, dim + n)
        assert_near(lse[head].view(group, n), want_lse, dim + n)


def test_merged_parts_are_attention_over_all_keys():
    torch.manual_seed(2)
    q, k, v = torch.randn(1, 2, 9, 64), torch.randn(1, 2, 50, 64), torch.randn(1, 2, 50, 64)
    parts = [attention(q, k[:, :, a:b], v[:, :, a:b], 0.3) for a, b in ((0, 1), (1, 20), (20, 50))]
    out, lse = merge_parts(parts)
    want, want_lse = attention64(q, k, v, 0.3)
    assert_near(out, want, 64 + 50)
    assert_near(lse, want_lse, 64 + 50)
    stacked = merge_stacked(torch.stack([p[0][0] for p in parts], 1), torch.stack([p[1][0] for p in parts], 1))
    assert_near(stacked, want[0], 64 + 50)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 15, 16, 17, 255, 511, 513, 1000]), min_size=1, max_size=5),
    rows=st.sampled_from([1, 3, 7, 40]),
    dim=st.sampled_from([16, 64, 80]),
)
def test_ragged_heads(lengths, rows, dim):
    torch.manual_seed(3)
    heads, bounds = len(lengths), [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    q, k, v = torch.randn(heads, rows, dim), torch.randn(bounds[-1], dim), torch.randn(bounds[-1], dim)
    tail_k, tail_v = torch.randn(heads, 5, dim), torch.randn(heads, 5, dim)
    tail = attention(q[None], tail_k[None], tail_v[None], dim**-0.5)
    plan = plan_ragged(k, v, bounds, rows)
    assert all(segment.keys.data_ptr() - k.data_ptr() < k.nbytes for segment in plan.segments)
    got = ragged_attention(q, plan, dim**-0.5, (tail[0][0], tail[1][0]))
    for head in range(heads):
        part = slice(bounds[head], bounds[head + 1])
        keys, values = torch.cat([k[part], tail_k[head]]), torch.cat([v[part], tail_v[head]])
        want, _ = attention64(q[head], keys, values, dim**-0.5)
        assert_near(got[head], want, dim + len(keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (5, 2048), (3000, 700), (600, 3)])
def test_column_max_is_the_largest_softmax_weight(dtype, rows, keys):
    torch.manual_seed(4)
    q, k = torch.randn(rows, 64).to(dtype), torch.randn(keys + 11, 64).to(dtype)
    before = q.clone()
    scores = q.double() @ k.double().T * 0.25
    want = torch.softmax(scores, -1)[:, :keys].amax(0)
    got = column_max(q, k[:keys], torch.logsumexp(scores, -1).float(), 0.25)
    assert got.dtype == torch.float32
    assert_near(got, want, 64, floor=0, size=LOGITS)
    assert torch.equal(q, before)


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_of_all_heads_are_those_of_each(weighted):
    torch.manual_seed(5)
    heads, group, n, m = 2, 3, 20, 50
    query, key = torch.randn(n, heads * group, 32).transpose(0, 1).view(heads, group, n, 32), torch.randn(heads, m, 32)
    logits = 0.3 * query.double() @ key.double().unsqueeze(1).transpose(-1, -2)
    lse = torch.logsumexp(logits, -1)
    weight = torch.rand(heads, group, m) if weighted else None
    shares = (logits - lse[..., None]).exp() * (1 if weight is None else weight[:, :, None].double())
    largest = column_max_heads(query, key, lse.float(), 0.3, weight)
    assert_near(largest, shares.amax((1, 2)), 32, floor=0, size=LOGITS)
    total = column_sum_heads(query, key, lse.float(), 0.3, weight=weight)
    assert_near(total, shares.sum((1, 2)), 32 + group * n, floor=0, size=LOGITS)
    assert_near(largest_logit_heads(query, key, 0.3), logits.amax((1, 2)), 32)


@pytest.mark.parametrize("kernel", [attention, plain_attention])
def test_without_keys_there_is_nothing(kernel):
    query = torch.randn(2, 3, 4, 16)
    out, lse = kernel(query, torch.zeros(2, 3, 0, 16), torch.zeros(2, 3, 0, 16), 0.25)
    assert torch.equal(out, torch.zeros_like(query))
    assert torch.isneginf(lse).all()
    assert lse.shape == (2, 3, 4)
