"""Scores of tokens by bit planes, by Triton against float64, against torch, and against the policy itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kvz.cache.bit_planes import BitPlanes, plane_layer
from kvz.cache.ragged import RaggedCache
from kvz.decode.policies.lowbit import LowBit
from kvz.kernels.plane_scores import PlaneIndex, plane_scores
from kvz.kernels.triton.plane_scores import launch_plane_scores
from tests.kernels.triton.ragged import poisoned, random_layer
from tests.near import LOGITS, assert_near

SCALE = 0.13
LENGTHS = (16, 0, 1, 15, 17, 130)


def index_of(planes: BitPlanes, lengths: Sequence[int], used: Sequence[int]) -> PlaneIndex:
    """With all bits set that belong to no token."""
    for head, length in enumerate(lengths):
        if length % 8:
            planes.planes[:, planes.bounds[head + 1] - 1] |= 256 - (1 << (length % 8))
    index = PlaneIndex.of(planes, lengths, used)
    index.planes[:, planes.bounds[-1] :] = 255
    return index


def reference(query: Tensor, planes: BitPlanes, length: int, used: int, head: int) -> Tensor:
    """Logits `[B,G,length]` of one head, in float64."""
    q = query[:, head].double() * planes.ranges[head].double()
    weights = torch.cat([q * 0.5 ** (b + 1) for b in range(planes.bits)], -1)
    token = torch.arange(length)
    stored = planes.planes[:, planes.bounds[head] + token // 8].int()
    bits = ((stored >> (token % 8)) & 1).double()
    logits = torch.zeros(q.shape[0], q.shape[1], length, dtype=torch.float64)
    for b in range(q.shape[0]):
        best = weights[b].abs().sum(0).sort(descending=True, stable=True).indices[:used]
        logits[b] = weights[b][:, best] @ bits[best] * SCALE
    return logits


@pytest.mark.parametrize(
    ("dim", "group", "dtype", "bits"),
    [
        (64, 1, torch.float32, 3),
        (80, 3, torch.bfloat16, 2),
        (96, 4, torch.float16, 2),
        (128, 7, torch.bfloat16, 1),
        (256, 8, torch.float32, 3),
    ],
)
def test_logits_and_scores_are_those_of_float64(dim: int, group: int, dtype: torch.dtype, bits: int) -> None:
    torch.manual_seed(dim)
    lengths = (*LENGTHS[:-1], 1000 if dim == 80 else 130)
    planes = plane_layer(random_layer(lengths, dim, dtype), 0, bits)
    used = (1, 5, 33, dim * bits, 0, 40)
    batch = 2 if dim < 128 else 1
    query = torch.randn(batch, len(used), group, dim).to(dtype)
    index = index_of(planes, lengths, used)
    space = poisoned(index.space(batch, group))
    scores = launch_plane_scores(query, index, SCALE, space)
    for head, length in enumerate(lengths):
        logits = reference(query, planes, length, used[head], head)
        assert_near(space.logits[:, head, :, :length], logits, used[head])
        wanted = logits.softmax(-1).mean(1)
        assert_near(scores[:, head, :length], wanted, used[head] + length + group, floor=0, size=LOGITS)
        assert torch.equal(scores[:, head, length:], torch.zeros_like(scores[:, head, length:]))


@pytest.mark.parametrize("plain", [False, True])
def test_scores_are_those_that_the_policy_selects_by(plain: bool) -> None:
    torch.manual_seed(1)
    layer = random_layer((5, 64, 21, 203), 64)
    policy = LowBit(32)
    policy.prepare(RaggedCache((layer,), 203), 5)
    query = torch.randn(3, 4, 4, 64)
    held = policy.layers[0]
    index = PlaneIndex.of(held.index, held.units.counts, held.rows)
    run = plane_scores if plain else launch_plane_scores
    scores = run(query, index, SCALE, poisoned(index.space(3, 4)))
    wanted = held.plain_scores(query.transpose(0, 1), SCALE).transpose(0, 1).nan_to_num(0)
    assert_near(scores[..., : index.most], wanted, 64 * 3 + index.most, floor=0, size=LOGITS)
