"""Merging slots against float64, where empty parts hold NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from kvz.kernels.decode_plan import DecodePlan, Rows, in_one_workspace, plan_decode
from kvz.kernels.flat_pairs import FlatPairs
from kvz.kernels.triton.merge_slots import configuration, launch_merge
from tests.near import assert_near


def _plan(rows: Rows, dim: int, multiprocessors: int) -> DecodePlan:
    """Three heads, the middle one empty, and tails of four parts, all slots filled at random, some of them empty."""
    made = torch.Generator().manual_seed(0)
    pairs = FlatPairs(torch.empty(10_000, dim), torch.empty(10_000, dim))
    (plan,) = in_one_workspace([plan_decode(pairs, [0, 1000, 1000, 10_000], rows, 1024, multiprocessors)])
    plan.outs.copy_(torch.randn(plan.outs.shape, generator=made))
    plan.lses.copy_(torch.randn(plan.lses.shape, generator=made) * 20)
    empty = torch.rand(plan.lses.shape, generator=made) < 0.3
    empty[plan.schedule.slots + plan.splits :][: plan.splits, 0] = True  # a row of the middle head that sees nothing
    plan.lses.masked_fill_(empty, float("-inf"))
    plan.outs.masked_fill_(empty[..., None], float("nan"))
    return plan


@pytest.mark.parametrize(("rows", "dim"), [(Rows(2, 2, 1), 80), (Rows(1, 1, 2), 96), (Rows(1, 2, 3), 64)])
@pytest.mark.parametrize("multiprocessors", [2, 70])
def test_results_are_merged_by_log_sum_exp(rows: Rows, dim: int, multiprocessors: int) -> None:
    plan = _plan(rows, dim, multiprocessors)
    shape = rows.batch, rows.tokens, plan.heads * rows.group
    wide = torch.full((*shape, 2 * dim), float("nan"))
    lse = torch.full(shape, float("nan"))
    launch_merge(plan, wide[..., :dim], lse)
    assert wide[..., dim:].isnan().all()
    bounds = plan.schedule.heads.tolist()
    for head in range(plan.heads):
        tail = plan.schedule.slots + head * plan.splits
        slots = [*range(bounds[head], bounds[head + 1]), *range(tail, tail + plan.splits)]
        lses = plan.lses[slots].double()
        weights = torch.softmax(lses, 0).nan_to_num(0)
        out = (weights[..., None] * plan.outs[slots].double().nan_to_num(0)).sum(0)
        group = slice(head * rows.group, (head + 1) * rows.group)
        by_row = rows.batch, rows.group, rows.tokens
        expected_lse = torch.logsumexp(lses, 0).view(by_row).transpose(1, 2)
        assert_near(wide[:, :, group, :dim], out.view(*by_row, dim).transpose(1, 2), len(slots))
        assert_near(lse[:, :, group], expected_lse, len(slots))
    assert torch.isneginf(lse[0, 0, rows.group])


def test_without_a_tail() -> None:
    plan = _plan(Rows(1, 2, 1), 64, 4)
    plan = replace(plan, splits=0)
    plan.lses.fill_(1.0)
    plan.outs.fill_(3.0)
    out, lse = torch.full((1, 1, 6, 64), float("nan")), torch.full((1, 1, 6), float("nan"))
    launch_merge(plan, out, lse)
    assert (out[:, :, 2:4] == 0).all()
    assert torch.isneginf(lse[:, :, 2:4]).all()
    assert_close(out[:, :, 4:], torch.full((1, 1, 2, 64), 3.0))


def test_few_rows_share_out_the_dimensions() -> None:
    assert configuration(128, 40, 32).dims == 32
    assert configuration(80, 40, 16384).dims == 128
