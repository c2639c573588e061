"""Scores of pages by Triton against float64, against torch, and against HSA itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kvz.cache.pages import PagedLayer, page_layer, rounded_outward
from kvz.cache.ragged import RaggedCache
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.selection import Selection, Units
from kvz.kernels.page_scores import PageIndex, page_scores, plain_page_scores
from kvz.kernels.triton.page_scores import launch_page_scores
from tests.kernels.triton.ragged import poisoned, random_layer
from tests.near import LOGITS, assert_near, rounding

SCALE = 0.21
LENGTHS = (16, 0, 1, 15, 17, 1000)


def index_of(pages: PagedLayer, dims: Sequence[int]) -> PageIndex:
    """With NaN behind the last page of 16-bit extremes, and other codes behind the last one of codes."""
    index = PageIndex.of(pages, dims)
    index.extremes[:, pages.bounds[-1] :] = 255 if pages.grid is not None else float("nan")
    return index


def reference(query: Tensor, pages: PagedLayer, dims: Sequence[int], head: int) -> tuple[Tensor, Tensor]:
    """Logits `[B,G,pages]` and scores `[B,pages]` of one head, page bound by page bound, in float64."""
    q = query[:, head].double()
    first, last = pages.bounds[head : head + 2]
    stored = pages.extremes[:, first:last].double()
    dim = q.shape[2]
    if pages.grid is not None:
        low, step = pages.grid[head].double()
        stored = low.repeat(2)[:, None] + step.repeat(2)[:, None] * stored
    logits = torch.zeros(q.shape[0], q.shape[1], last - first, dtype=torch.float64)
    for b in range(q.shape[0] if dims[head] else 0):
        best = q[b].abs().sum(0).sort(descending=True, stable=True).indices[: dims[head]].tolist()
        bounds = torch.stack([stored[d + dim if q[b, :, d].sum() < 0 else d] for d in best])
        share = q[b][:, best].abs().sum(1) / q[b].abs().sum(1)
        logits[b] = q[b][:, best] @ bounds * SCALE / share.sqrt()[:, None]
    return logits, logits.softmax(-1).mean(1)


@pytest.mark.parametrize(
    ("dim", "group", "dtype", "size", "codes"),
    [
        (64, 1, torch.float32, 4, False),
        (80, 3, torch.bfloat16, 3, False),
        (96, 4, torch.float16, 16, False),
        (128, 6, torch.bfloat16, 4, True),
        (128, 7, torch.float32, 2, True),
        (256, 8, torch.bfloat16, 1, False),
        (64, 4, torch.float16, 1, True),
        (256, 3, torch.bfloat16, 5, True),
    ],
)
def test_logits_and_scores_are_those_of_float64(
    dim: int, group: int, dtype: torch.dtype, size: int, codes: bool
) -> None:
    torch.manual_seed(dim + group)
    pages = page_layer(random_layer(LENGTHS, dim, dtype), 0, size)
    pages = rounded_outward(pages) if codes else pages
    dims = (dim, 3, 1, 0, 16, 33)
    batch = 2 if dim < 128 else 1
    query = torch.randn(batch, len(dims), group, dim).to(dtype)
    index = index_of(pages, dims)
    space = poisoned(index.space(batch, group))
    scores = launch_page_scores(query, index, SCALE, space)
    for head in range(len(dims)):
        logits, wanted = reference(query, pages, dims, head)
        count = wanted.shape[1]
        assert_near(space.logits[:, head, :, :count], logits, dim)
        assert_near(scores[:, head, :count], wanted, dim + count + group, floor=0, size=LOGITS)
        assert torch.equal(scores[:, head, count:], torch.zeros_like(scores[:, head, count:]))


def test_large_and_tiny_queries_keep_their_precision() -> None:
    torch.manual_seed(5)
    pages = rounded_outward(page_layer(random_layer((40, 9), 64), 0, 2))
    query = torch.randn(1, 2, 3, 64) * torch.tensor([1e-6, 1.0, 3e4])[:, None]
    index = index_of(pages, (64, 20))
    space = poisoned(index.space(1, 3))
    launch_page_scores(query, index, SCALE, space)
    for head, count in ((0, 20), (1, 5)):
        logits = reference(query, pages, (64, 20), head)[0]
        size = logits.abs().amax(-1, keepdim=True)
        error = (space.logits[:, head, :, :count].double() - logits).abs() / size
        assert float(error.max()) < rounding(64)


@pytest.mark.parametrize("plain", [False, True])
def test_scores_are_those_that_hsa_selects_by(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    layer = random_layer((5, 64, 21, 203), 64)
    policy = HSA(32)
    policy.prepare(RaggedCache((layer,), 203), 5)
    seen: list[Tensor] = []

    def select(units: Units, scores: Tensor) -> Selection:
        seen.append(scores)
        return Selection(scores, scores)

    monkeypatch.setattr(Units, "select", select)
    query = torch.randn(3, 4, 4, 64)  # [B,H,G,D]
    policy.choose(0, query.transpose(0, 1), SCALE)
    held = policy.layers[0]
    index = PageIndex.of(held.pages, [b.dims for b in held.budgets])
    run = page_scores if plain else launch_page_scores
    scores = run(query, index, SCALE, poisoned(index.space(3, 4)))
    wanted = seen[0].transpose(0, 1).nan_to_num(0)  # HSA has NaN where a head has no page
    assert_near(scores[..., : index.most], wanted, 64 + index.most, floor=0, size=LOGITS)


def test_plain_form_writes_the_same_logits() -> None:
    torch.manual_seed(2)
    pages = rounded_outward(page_layer(random_layer((20, 0, 33), 80), 0, 4))
    index = index_of(pages, (7, 7, 0))
    query = torch.randn(2, 3, 2, 80)
    ours, plain = (poisoned(index.space(2, 2)) for _ in range(2))
    launch_page_scores(query, index, SCALE, ours)
    plain_page_scores(query, index, SCALE, plain)
    assert_near(ours.scores, plain.scores, 7 + 9, floor=0, size=LOGITS)
    assert_near(ours.logits[:, 2, :, :9], plain.logits[:, 2, :, :9], 7)
