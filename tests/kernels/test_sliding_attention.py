"""Sliding-window attention against its definition in float64."""

from __future__ import annotations

import pytest
import torch

from kvz.cache.sliding import SlidingLayer
from kvz.kernels.sliding_attention import sliding_attention
from tests.near import assert_near
from tests.reference import attention64


@pytest.mark.parametrize("window", [1, 2, 7, 128, 500])
@pytest.mark.parametrize(("past", "n"), [(0, 1), (0, 300), (6, 1), (40, 129), (499, 260)])
@pytest.mark.parametrize(("heads", "group"), [(1, 4), (2, 3)])
def test_each_row_sees_its_window(window, past, n, heads, group):
    torch.manual_seed(0)
    q = torch.randn(heads, group, n, 16)
    k, v = torch.randn(2, heads, past + n, 16)
    distance = torch.arange(past, past + n)[:, None] - torch.arange(past + n)
    mask = (distance >= 0) & (distance < window)
    want = attention64(q, k[:, None], v[:, None], 0.3, mask)[0]
    got = sliding_attention(q, k, v, 0.3, window)
    assert_near(got, want, 16 + min(window, past + n))


@pytest.mark.parametrize("parts", [[40], [1] * 40, [3, 30, 7], [16, 24]])
@pytest.mark.parametrize("slack", [0, 12])
def test_a_window_that_moves_on_sees_what_the_whole_would(parts, slack):
    torch.manual_seed(0)
    q, (k, v) = torch.randn(2, 2, 40, 8), torch.randn(2, 2, 40, 8)
    want = sliding_attention(q, k, v, 0.4, 9)
    none = torch.empty(2, 0, 8)
    layer, start = SlidingLayer(none, none, 9, slack), 0
    for n in parts:
        rows = slice(start, start + n)
        got = layer.attend(q[:, :, rows], k[:, rows], v[:, rows], 0.4)
        assert_near(got, want[:, :, rows], 8 + 9)
        layer.append(k[:, rows], v[:, rows])
        start += n
    assert layer.keys.shape[1] == 8 + slack
    earlier = layer.before(slack)
    torch.testing.assert_close(earlier.keys, k[:, 40 - slack - 8 : 40 - slack])
