"""Column maxima and row log-sum-exps against their definitions in float64."""

from __future__ import annotations

import pytest
import torch

from kvz.kernels.triton.kvzip_score import column_max
from tests.kernels.triton.surrounded import DEVICE, surrounded
from tests.near import LOGITS, assert_near

CASES = [
    # H, G, n, m, D, dtype
    (1, 1, 1, 1, 64, torch.float32),
    (2, 3, 17, 129, 80, torch.float32),
    (1, 4, 65, 15, 96, torch.bfloat16),
    (2, 6, 16, 16, 64, torch.float16),
    (1, 7, 33, 17, 128, torch.bfloat16),
    (1, 8, 31, 1000, 128, torch.bfloat16),
    (2, 1, 200, 128, 256, torch.bfloat16),
]


def inputs(heads, group, n, m, dim, dtype):
    """Queries and keys with NaN around them, and their scaled products in float64."""
    torch.manual_seed(n + m)
    query = surrounded(torch.randn(heads, group, n, dim).to(dtype))
    key = surrounded(torch.randn(heads, m, dim).to(dtype))
    logits = 0.3 * query.double() @ key.double().unsqueeze(1).transpose(-1, -2)
    return query, key, logits


@pytest.mark.parametrize(("heads", "group", "n", "m", "dim", "dtype"), CASES)
def test_column_max_is_the_largest_softmax_weight(heads, group, n, m, dim, dtype):
    query, key, logits = inputs(heads, group, n, m, dim, dtype)
    lse = torch.logsumexp(logits, -1) + 0.5  # other keys are in the softmax as well
    got = column_max(query, key, surrounded(lse.float(), 0), 0.3)
    want = (logits - lse[..., None]).exp().amax((1, 2))
    assert got.shape == (heads, m)
    assert got.dtype == torch.float32
    assert_near(got, want, dim, floor=0, size=LOGITS)


@pytest.mark.parametrize("case", [CASES[1], CASES[4]])
def test_without_lse_it_is_the_largest_logit(case):
    query, key, logits = inputs(*case)
    got = column_max(query, key, None, 0.3)
    assert_near(got, logits.amax((1, 2)), case[4])


def test_rows_that_are_not_there_are_no_logits():
    """All logits below zero, which is what the rows that fill up a block would have."""
    query, key = torch.ones(1, 2, 5, 64, device=DEVICE), -torch.ones(1, 3, 64, device=DEVICE)
    assert torch.equal(column_max(query, key, None, 1.0), torch.full((1, 3), -64.0, device=DEVICE))


@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[4]])
def test_weights_of_query_heads_and_rows_that_have_no_say(case):
    """KVzip+: weights of a key differ among query heads, may be zero, and a row's lse may be infinite."""
    query, key, logits = inputs(*case)
    heads, group, _, m, _, _ = case
    lse = torch.logsumexp(logits, -1)
    lse[:, 0, -1] = float("inf")
    weight = torch.rand(heads, group, m, dtype=torch.float64) * 5
    weight[:, :, 0] = 0
    weight = weight.to(DEVICE)
    got = column_max(query, key, lse.float(), 0.3, surrounded(weight.float(), 0))
    want = ((logits - lse[..., None]).exp() * weight[:, :, None]).amax((1, 2))
    assert_near(got, want, case[4], floor=0, size=LOGITS)
    assert (got[:, 0] == 0).all()


def test_each_row_of_a_group_counts():
    """One row far from all others decides its key's score, whichever it is."""
    heads, group, n, m, dim = 1, 3, 70, 5, 64
    for g, i in [(0, 0), (0, 63), (1, 64), (2, 69)]:
        query = torch.zeros(heads, group, n, dim)
        query[0, g, i, 2] = 10
        key = torch.zeros(heads, m, dim)
        key[0, 3, 2] = 1
        got = column_max(query.to(DEVICE), key.to(DEVICE), torch.full((heads, group, n), 12.0, device=DEVICE), 1.0)
        torch.testing.assert_close(got.cpu(), torch.tensor([[-12.0, -12, -12, -2, -12]]).exp())


def test_nan_is_not_hidden():
    query, key = torch.zeros(1, 2, 20, 64, device=DEVICE), torch.zeros(1, 40, 64, device=DEVICE)
    lse = torch.zeros(1, 2, 20, device=DEVICE)
    key[0, 7, 5] = float("nan")
    got = column_max(query, key, lse, 1.0)
    assert got.isnan().sum() == 1
    assert got[0, 7].isnan()
    query[0, 1, 3, 0] = float("nan")
    assert column_max(query, key, lse, 1.0).isnan().all()


def test_no_keys_and_transposed_queries():
    query = torch.randn(17, 6, 64, device=DEVICE).transpose(0, 1).view(2, 3, 17, 64)
    key = torch.randn(2, 9, 64, device=DEVICE)
    lse = torch.zeros(2, 3, 17, device=DEVICE)
    assert column_max(query, key[:, :0], lse, 1.0).shape == (2, 0)
    want = column_max(query.contiguous(), key, lse, 0.1)
    assert torch.equal(column_max(query, key, lse, 0.1), want)
    by_dims = key.transpose(1, 2).contiguous().transpose(1, 2)  # no stride of 1 where it is needed
    assert torch.equal(column_max(query, by_dims, lse, 0.1), want)


def test_columns_are_the_paper_s_score():
    """Softmax over [prefix | chunk | own, causal], the chunk's columns, largest over group and rows."""
    query, key, _ = inputs(1, 4, 40, 60, 64, torch.bfloat16)
    own = torch.randn(1, 40, 64, device=DEVICE).bfloat16()
    logits = 0.125 * query[0].double() @ torch.cat([key[0], own[0]]).double().T
    logits[:, :, 60:] = logits[:, :, 60:].masked_fill(
        torch.ones(40, 40, dtype=torch.bool, device=DEVICE).triu(1), float("-inf")
    )
    lse = torch.logsumexp(logits, -1)[None].float()
    got = column_max(query, key[:, 11:], lse, 0.125)
    want = torch.softmax(logits, -1)[:, :, 11:60].amax((0, 1))
    assert_near(got[0], want, 64 + 100, floor=0, size=LOGITS)
