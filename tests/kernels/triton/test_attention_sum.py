"""Column sums against their definition in float64."""

from __future__ import annotations

import pytest
import torch

from kvz.kernels.triton.attention_sum import column_sum
from tests.kernels.triton.surrounded import DEVICE, surrounded
from tests.near import LOGITS, assert_near

CASES = [
    # H, G, n, m, D, dtype
    (1, 1, 1, 1, 64, torch.float32),
    (2, 3, 17, 129, 80, torch.float32),
    (1, 4, 65, 15, 96, torch.bfloat16),
    (2, 6, 16, 16, 64, torch.float16),
    (1, 7, 33, 17, 128, torch.bfloat16),
    (1, 8, 32, 1000, 128, torch.bfloat16),
    (2, 1, 200, 200, 256, torch.bfloat16),
    (1, 2, 20, 300, 64, torch.float32),
]


def inputs(heads, group, n, m, dim, dtype, causal=False):
    """Queries and keys with NaN around them, scaled products that a row sees in float64, and log-sum-exps."""
    torch.manual_seed(n + m)
    query = surrounded(torch.randn(heads, group, n, dim).to(dtype))
    key = surrounded(torch.randn(heads, m, dim).to(dtype))
    logits = 0.3 * query.double() @ key.double().unsqueeze(1).transpose(-1, -2)
    if causal:
        logits = logits.masked_fill(torch.ones(n, m, dtype=torch.bool, device=DEVICE).triu(1), float("-inf"))
    return query, key, logits, torch.logsumexp(logits, -1) + 0.5


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "group", "n", "m", "dim", "dtype"), CASES)
def test_column_sum_is_the_attention_received(heads, group, n, m, dim, dtype, causal):
    query, key, logits, lse = inputs(heads, group, n, m, dim, dtype, causal)
    got = column_sum(query, key, surrounded(lse.float(), 0), 0.3, causal)
    want = (logits - lse[..., None]).exp().sum((1, 2))
    assert got.shape == (heads, m)
    assert got.dtype == torch.float32
    assert_near(got, want, dim + group * n, floor=0, size=LOGITS)
    if causal and m > n:
        assert (got[:, n:] == 0).all()  # keys after the last row


@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[4]])
def test_weights_and_rows_that_have_no_say(case):
    """KVzip-RMS: doubled logits, squared norms of each query head and key, an infinite lse for a row of zeros."""
    query, key, logits, lse = inputs(*case)
    heads, group, _, m, _, _ = case
    lse[:, 0, -1] = float("inf")
    norms = (torch.rand(heads, group, m, dtype=torch.float64) * 5).to(DEVICE)
    norms[:, :, 0] = 0
    got = column_sum(query, key, 2 * lse.float(), 0.6, weight=surrounded(norms.square().float(), 0))
    want = ((logits - lse[..., None]).exp() * norms[:, :, None]).square().sum((1, 2))
    assert_near(got, want, case[4] + group * case[2], floor=0, size=2 * LOGITS)
    assert (got[:, 0] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_every_row_is_counted_once(causal):
    """All products zero: a key's sum is the number of rows that see it."""
    heads, group, n, m = 2, 3, 150, 150
    query, key = torch.zeros(heads, group, n, 64, device=DEVICE), torch.zeros(heads, m, 64, device=DEVICE)
    got = column_sum(query, key, torch.zeros(heads, group, n, device=DEVICE), 1.0, causal)
    seeing = n - torch.arange(m) if causal else torch.full((m,), n)
    assert torch.equal(got.cpu(), (group * seeing).float().expand(heads, -1))


def test_sums_are_the_same_every_time():
    query, key, _, lse = inputs(2, 4, 100, 130, 64, torch.float32)
    first = column_sum(query, key, lse.float(), 0.3)
    assert all(torch.equal(column_sum(query, key, lse.float(), 0.3), first) for _ in range(2))


def test_no_keys_and_nan():
    query, key, _, lse = inputs(1, 1, 5, 20, 64, torch.float32)
    assert column_sum(query, key[:, :0], lse.float(), 0.3).shape == (1, 0)
    key[0, 4] = float("nan")
    got = column_sum(query, key, lse.float(), 0.3)
    assert got[0, 4].isnan()
    assert got.isnan().sum() == 1
