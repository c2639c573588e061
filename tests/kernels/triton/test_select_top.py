"""The best units by Triton: the scores taken are the largest ones, each unit once, whatever the scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvz.kernels.select_top import plain_select_top
from kvz.kernels.triton.select_top import launch_select_top

COUNTS = (0, 1, 15, 16, 17, 1000, 2045)
TAKES = (4, 3, 15, 1, 9, 100, 1500)
WIDTH = 2048  # two blocks of the kernel's


def random_scores(kind: str) -> Tensor:
    torch.manual_seed(0)
    scores = torch.randn(2, len(COUNTS), WIDTH)
    if kind == "softmax":
        return (5 * scores).softmax(-1)
    if kind == "ties":
        return scores.round()
    if kind == "equal":
        return torch.zeros_like(scores)
    if kind == "extreme":
        scores[..., ::7] = float("inf")
        scores[..., 1::7] = float("-inf")
        scores[..., 2::7] = 0.0
        scores[..., 3::7] = -0.0
        scores[..., 4::7] = 1e-42
    return scores


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", ["any", "softmax", "ties", "equal", "extreme"])
def test_the_largest_are_taken_once(kind: str, plain: bool) -> None:
    scores = random_scores(kind)
    counts, takes = (torch.tensor(t, dtype=torch.int32) for t in (COUNTS, TAKES))
    for head, count in enumerate(COUNTS):
        scores[:, head, count:] = float("nan") if count % 2 else float("inf")
    out = torch.full((2, len(COUNTS), 1510), 12345, dtype=torch.int32)
    (plain_select_top if plain else launch_select_top)(scores, counts, takes, out)
    for question in range(2):
        for head, (count, take) in enumerate(zip(COUNTS, TAKES, strict=True)):
            taken = out[question, head, : min(count, take)].tolist()
            assert out[question, head, len(taken) :].eq(-1).all()
            assert len(set(taken)) == len(taken)
            assert all(0 <= unit < count for unit in taken)
            wanted = scores[question, head, :count].sort(descending=True).values[: len(taken)]
            assert torch.equal(scores[question, head, taken].sort(descending=True).values, wanted)


def test_no_more_are_taken_than_there_is_room_for() -> None:
    scores = torch.arange(32.0).expand(1, 2, 32).contiguous()
    counts = torch.tensor([32, 2], dtype=torch.int32)
    out = torch.full((1, 2, 5), 12345, dtype=torch.int32)
    launch_select_top(scores, counts, torch.tensor([9, 9], dtype=torch.int32), out)
    assert sorted(out[0, 0].tolist()) == [27, 28, 29, 30, 31]
    assert sorted(out[0, 1].tolist()) == [-1, -1, -1, 0, 1]
