from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.cache.full import FullCache
from kvz.cache.ragged import evict
from kvz.cache.tail import Tail
from kvz.geometry import Geometry, LayerShape


def random_full(layers: int, heads: int, length: int, dim: int = 8) -> FullCache:
    full = FullCache([LayerShape(heads, dim)] * layers, length, torch.float32, torch.device("cpu"))
    for layer in range(layers):
        full.attend(layer, *(torch.randn(1, heads, length, dim) for _ in range(3)), 0.3)
    full.advance(length)
    return full


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 4),
    context=st.integers(1, 30),
    prefix=st.integers(0, 5),
    seed=st.integers(0, 999),
)
def test_evict_keeps_exactly_the_marked_pairs_in_order(layers, heads, context, prefix, seed):
    torch.manual_seed(seed)
    full = random_full(layers, heads, prefix + context)
    copies = [tuple(t.clone() for t in full.layer(i)) for i in range(layers)]
    kept = torch.rand(layers * heads, context) < 0.4
    kept[:, seed % context] = True
    geometry = Geometry(heads, (LayerShape(heads, 8),) * layers, 4096)
    held: list[int] = []
    ragged = evict(full, kept, geometry, prefix, lambda layer: held.append(full.nbytes))
    assert ragged.logical_length == prefix + context
    assert ragged.pairs == layers * heads * prefix + int(kept.sum())
    assert held == [full_bytes(heads, prefix + context) * (layers - 1 - i) for i in range(layers)]
    for index, layer in enumerate(ragged.layers):
        assert layer.positions.dtype == torch.int32
        assert layer.offsets.dtype == torch.int64
        for head in range(heads):
            part = slice(layer.bounds[head], layer.bounds[head + 1])
            want = [*range(prefix), *(prefix + kept[index * heads + head].nonzero()[:, 0]).tolist()]
            assert layer.positions[part].tolist() == want
            assert torch.equal(layer.keys[part], copies[index][0][head, want])
            assert torch.equal(layer.values[part], copies[index][1][head, want])


def full_bytes(heads: int, length: int) -> int:
    return 2 * heads * length * 8 * 4


def test_a_released_layer_is_gone():
    full = random_full(2, 1, 5)
    full.release(0)
    with pytest.raises(RuntimeError, match="released"):
        full.layer(0)
    assert full.layer(1)[0].shape == (1, 5, 8)


def test_tail_views_grow_in_place_and_reset_forgets():
    tail = Tail([LayerShape(2, 4)], 6, torch.float32, torch.device("cpu"))
    first, second = torch.randn(2, 4, 4), torch.randn(2, 1, 4)
    keys, _ = tail.write(0, first, first)
    tail.advance(4)
    more, values = tail.write(0, second, second)
    assert more.data_ptr() == keys.data_ptr()
    assert torch.equal(more, torch.cat([first, second], 1))
    assert torch.equal(values, more)
    tail.advance(1)
    with pytest.raises(RuntimeError, match="full"):
        tail.write(0, torch.randn(2, 2, 4), torch.randn(2, 2, 4))
    tail.reset()
    assert tail.write(0, second, second)[0].shape[1] == 1


def test_an_offloaded_cache_is_the_same_cache():
    """Main memory in place of the device's: every path but the copy itself runs on a CPU too."""
    torch.manual_seed(0)
    shapes = [LayerShape(2, 8), LayerShape(2, 8, 6), LayerShape(3, 4)]
    caches = [FullCache(shapes, 40, torch.float32, torch.device("cpu"), offload) for offload in (False, True)]
    for n in (25, 15):
        pairs = [torch.randn(1, shape.kv_heads, n, shape.head_dim) for shape in shapes for _ in range(3)]
        for layer in range(3):
            outs = [cache.attend(layer, *pairs[3 * layer : 3 * layer + 3], 0.3) for cache in caches]
            assert torch.equal(*outs)
        for cache in caches:
            cache.advance(n)
    kept = torch.rand(5, 40) < 0.5
    kept[:, 0] = True
    ours, theirs = (evict(cache, kept, Geometry(6, tuple(shapes), 99), 0) for cache in caches)
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        assert torch.equal(a.keys, b.keys)
        assert torch.equal(a.positions, b.positions)
    assert ours.layers[1].positions.tolist() == [*range(35, 40)] * 2
    assert ours.layers[1].window == 6


def test_no_pair_of_a_full_layer_is_held_twice():
    """While a chunk is prefilled and while layers are evicted, beyond the one layer being copied."""
    full = random_full(4, 2, 30)
    sizes = [t.untyped_storage().nbytes() for layer in range(4) for t in full.stored(layer)]
    assert sum(sizes) == full_bytes(2, 30) * 4
    assert all(t.data_ptr() == full.stored(0)[0].data_ptr() for t in (full.layer(0)[0],))
