"""The bit-plane index and the selection by it, against their formulas in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.cache.bit_planes import plane_layer
from kvz.cache.index_plan import BITS
from kvz.decode.policies.lowbit import LowBit
from tests.decode.ragged import GROUPS, PREFIX, context, ragged, rows_of, scored
from tests.near import LOGITS, assert_near, rounding


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("average", "share"), [(4, 0.1), (1.5, 0.4), (4, 1.0)])
def test_lowbit_equals_its_formula(group, average, share):
    """Codes, rows and scores written out: the rows of bits with the largest sum of |q| range / 2^(b+1)."""
    torch.manual_seed(3)
    layer, q, budget = ragged([200, 41]), torch.randn(2, 2, group, 16), 40
    seen, selection = scored(LowBit(budget, average, share), layer, q)
    for head, length in ((0, 200), (1, 41)):
        keys, qd = context(layer, head), q[head, 1].double()
        low, span = keys.amin(0), keys.amax(0) - keys.amin(0)
        codes = ((keys - low) / span * 2**BITS).floor().clamp(0, 2**BITS - 1).long()
        rows = min(16 * BITS, int(16 * average), int(share * budget * 32 * 16 / length))
        gains = {(b, d): float((qd[:, d].abs() * span[d]).sum()) / 2 ** (b + 1) for b in range(BITS) for d in range(16)}
        approximate = torch.zeros(group, length, dtype=torch.float64)
        for b, d in sorted(gains, key=lambda row: -gains[row])[:rows]:
            bit = (codes[:, d] >> (BITS - 1 - b)) & 1
            approximate += qd[:, d, None] * span[d] / 2 ** (b + 1) * bit
        want = torch.softmax(approximate * 0.25, 1).mean(0)
        assert_near(seen[0][head, 1, :length], want, rows + length + group, floor=0, size=LOGITS)
        take = max(1, int(budget - rows * length / (32 * 16)))
        kept = rows_of(layer, selection, head, 1)
        assert len(kept) == take
        assert min(want[kept]) >= sorted(want)[-take] * (1 - rounding(rows, LOGITS))


def test_all_bits_in_all_dimensions_are_close_to_the_keys():
    """With every row read, an approximate score is off by no more than half a cell of every channel."""
    layer, q = ragged([100], seed=4), torch.randn(1, 1, 1, 16)
    planes = plane_layer(layer, PREFIX)
    bits = planes.rows(0, torch.arange(16 * BITS))[:, :100].double()
    got = planes.weights(q)[0, 0].double() @ bits
    true = q[0, 0].double() @ context(layer, 0).T
    cell = (q[0, 0].abs() * planes.ranges[0]).sum() / 2**BITS
    difference = got - true
    assert (difference - difference.mean()).abs().max() <= cell


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_planes_hold_the_codes_of_their_tokens_and_no_others(lengths, seed):
    layer = ragged(lengths, 8, seed)
    planes = plane_layer(layer, PREFIX)
    assert planes.planes.shape == (8 * BITS, sum(-(-n // 8) for n in lengths))
    assert planes.nbytes == planes.planes.numel() + 4 * 8 * len(lengths)
    for head, length in enumerate(lengths):
        if not length:
            continue
        keys = context(layer, head)
        bits = planes.rows(head, torch.arange(8 * BITS))[:, :length].view(BITS, 8, length).double()
        codes = sum(bits[b] * 2 ** (BITS - 1 - b) for b in range(BITS))
        span = keys.amax(0) - keys.amin(0)
        low = keys.amin(0) + codes.T / 2**BITS * span
        slack = 1e-4 * (1 + span)
        assert (keys >= low - slack).all()
        assert (keys <= low + span / 2**BITS + slack).all()
