"""A step of sparse decoding by kernels alone gives what the policies give: scores, selection, attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.decode.beside import Beside
from kvz.decode.policies.dense import DenseReader
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.lowbit import LowBit
from kvz.decode.policies.selection import Selector, Units
from kvz.decode.policies.sparse import SparseReader
from kvz.kernels.attention import grouped_attention
from kvz.kernels.page_scores import PageIndex
from kvz.kernels.plane_scores import PlaneIndex
from kvz.kernels.sparse_attention import ChoosableLayer, SparseSpace
from kvz.kernels.triton.page_scores import launch_page_scores
from kvz.kernels.triton.plane_scores import launch_plane_scores
from kvz.kernels.triton.select_top import launch_select_top
from kvz.kernels.triton.sparse_attention import launch_sparse_attention
from tests.kernels.triton.ragged import poisoned, random_layer
from tests.near import assert_near

SCALE = 0.15
PREFIX = 4


def scored(policy: Selector, query: Tensor) -> tuple[Units, Tensor, Tensor]:
    """What a policy chooses from, the scores `[B,H,U]`, and how many units each head has."""
    if isinstance(policy, HSA):
        held = policy.layers[0]
        pages = PageIndex.of(held.pages, [b.dims for b in held.budgets])
        return (
            held.units,
            launch_page_scores(query, pages, SCALE, poisoned(pages.space(1, query.shape[2]))),
            pages.counts,
        )
    assert isinstance(policy, LowBit)
    low = policy.layers[0]
    planes = PlaneIndex.of(low.index, low.units.counts, low.rows)
    return (
        low.units,
        launch_plane_scores(query, planes, SCALE, poisoned(planes.space(1, query.shape[2]))),
        planes.counts,
    )


def by_kernels(policy: Selector, layer: RaggedLayer, query: Tensor, tail: tuple[Tensor, Tensor]) -> Tensor:
    """`query [H,G,D]` over prefix, choice and all of `tail [1,H,n,D]`: `[H,G,D]`."""
    heads, group, dim = query.shape
    units, scores, counts = scored(policy, query[None])
    held = ChoosableLayer.of(layer, PREFIX, units.size, units.takes)
    chosen = launch_select_top(scores, counts, held.takes, held.units(1))
    past = torch.tensor([tail[0].shape[2]], dtype=torch.int32)
    out = torch.full((1, 1, heads * group, dim), float("nan"))
    space = SparseSpace.of(held, 1, group, tail[0].shape[2])
    return launch_sparse_attention(query[None], held, chosen, tail, past, SCALE, space, out).view(heads, group, dim)


@pytest.mark.parametrize("policy", [HSA(48), HSA(20, page=3), LowBit(48)])
def test_a_step_is_that_of_the_policy(policy: Selector) -> None:
    torch.manual_seed(3)
    layer = random_layer((PREFIX + 30, PREFIX + 215, PREFIX + 1, PREFIX + 97), 64)
    cache = RaggedCache((layer,), 219)
    policy.prepare(cache, PREFIX)
    query = torch.randn(4, 4, 64)
    tail = torch.randn(1, 4, 11, 64), torch.randn(1, 4, 11, 64)
    reader = SparseReader(cache, PREFIX, policy, DenseReader(cache))
    one = query.unsqueeze(2)
    wanted = reader.attend(0, one, SCALE, Beside(lambda: grouped_attention(one, tail[0][0], tail[1][0], SCALE)))
    assert_near(by_kernels(policy, layer, query, tail), wanted, 64 + 48 + 11 + PREFIX)


def test_room_for_another_shape_is_refused() -> None:
    layer = random_layer((20, 9), 64)
    policy = HSA(8)
    policy.prepare(RaggedCache((layer,), 20), 0)
    index = PageIndex.of(policy.layers[0].pages, (5, 0))
    with pytest.raises(ValueError, match="room"):
        launch_page_scores(torch.randn(2, 2, 3, 64), index, SCALE, index.space(1, 3))
    held = ChoosableLayer.of(layer, 0, 4, (3, 3))
    tail = torch.zeros(1, 2, 4, 64), torch.zeros(1, 2, 4, 64)
    space, out = SparseSpace.of(held, 1, 3, 4), torch.zeros(1, 1, 6, 64)
    past, query = torch.zeros(1, dtype=torch.int32), torch.randn(1, 2, 3, 64)
    with pytest.raises(ValueError, match="units"):
        launch_sparse_attention(query, held, held.units(1)[..., :2], tail, past, SCALE, space, out)
    turned = tail[0].transpose(2, 3).contiguous().transpose(2, 3), tail[1]
    with pytest.raises(ValueError, match="rows"):
        launch_sparse_attention(query, held, held.units(1), turned, past, SCALE, space, out)
