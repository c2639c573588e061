"""What a step reads and what a policy holds, in bytes: counted by hand from the papers' formulas, head by head."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kvz.cache.bit_planes import plane_layer
from kvz.cache.pages import page_layer, rounded_outward
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.cache.tail import Tail
from kvz.decode.budget import rocket_kept
from kvz.decode.decoding import MAKERS, Reading, dense_reading
from kvz.geometry import LayerShape
from tests.decode.ragged import LENGTHS, PREFIX, ragged, run

DIM, BUDGET = 16, 40
LONG, MIDDLE, SHORT, NONE = LENGTHS  # pairs of the context: two heads that the budget does not cover, two that it does
SIZES = [(torch.float32, 4), (torch.bfloat16, 2)]


def layer_of(dtype: torch.dtype) -> RaggedLayer:
    layer = ragged(LENGTHS, DIM)
    return replace(layer, keys=layer.keys.to(dtype), values=layer.values.to(dtype))


def reading_of(policy: str, layer: RaggedLayer) -> Reading:
    return MAKERS[policy](policy, RaggedCache((layer,), 300), PREFIX, BUDGET)


def pair(size: int) -> int:
    """Bytes of a key and a value."""
    return 2 * DIM * size


def attended(tokens: int, size: int) -> int:
    """Bytes of so many pairs, and of the prefix in all four heads."""
    return (4 * PREFIX + tokens) * pair(size)


def hsa_bytes(size: int) -> int:
    """One of the two bounds of every page of 4, in D p t / L dimensions; then t / 2 tokens in whole pages."""
    bounds = sum(math.ceil(n / 4) * min(DIM, DIM * 4 * BUDGET // n) * size for n in (LONG, MIDDLE))
    return bounds + attended(20 + 20 + SHORT, size)


def quest_bytes(size: int) -> int:
    """Both bounds of every page of 16 in all dimensions; then t / 2 tokens, which is a page here."""
    bounds = sum(math.ceil(n / 16) * 2 * DIM * size for n in (LONG, MIDDLE))
    return bounds + attended(16 + 16 + SHORT, size)


def sparq_bytes(size: int) -> int:
    """D t / L dimensions of every key, t / 2 tokens, and the mean value of each head in float32."""
    few = sum(n * min(DIM, DIM * BUDGET // n) * size for n in (LONG, MIDDLE))
    return few + attended(20 + 20 + SHORT, size) + 4 * DIM * 4


def exact_bytes(size: int) -> int:
    """Every key, prefix apart, and the values of the t best."""
    keys = (LONG + MIDDLE + SHORT) * DIM * size
    return keys + (BUDGET + BUDGET + SHORT) * DIM * size + attended(0, size)


def lowbit_bytes(size: int) -> int:
    """Rows of a bit a token in any dtype: 1.5 D of them, or what 0.4 of the budget pays for; and what channels span."""
    index, tokens = 0, SHORT
    for n in (LONG, MIDDLE):
        rows = min(int(1.5 * DIM), int(0.4 * BUDGET * 32 * DIM / n))
        index += rows * math.ceil(n / 8) + DIM * 4
        tokens += int(BUDGET - rows * n / (32 * DIM))
    return index + attended(tokens, size)


COUNTS = {
    "hsa": hsa_bytes,
    "quest": quest_bytes,
    "sparq": sparq_bytes,
    "exact-topk": exact_bytes,
    "lowbit": lowbit_bytes,
}


@pytest.mark.parametrize(("dtype", "size"), SIZES)
@pytest.mark.parametrize("policy", COUNTS)
def test_bytes_read_are_those_of_the_formula_in_any_dtype(policy: str, dtype: torch.dtype, size: int) -> None:
    assert reading_of(policy, layer_of(dtype)).read().nbytes == COUNTS[policy](size)


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_dense_and_sliding_layers_read_what_is_there(dtype: torch.dtype, size: int) -> None:
    layer = layer_of(dtype)
    sliding = replace(layer, window=24)
    cache = RaggedCache((layer, sliding), 300)
    everything = attended(sum(LENGTHS), size)
    assert dense_reading(cache).read().nbytes == 2 * everything
    few = MAKERS["quest"]("quest", cache, PREFIX, BUDGET)
    assert few.read().nbytes == quest_bytes(size) + everything


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_bounds_in_8_bits_are_a_byte_each(dtype: torch.dtype, size: int) -> None:
    layer = layer_of(dtype)
    layer = replace(layer, pages=rounded_outward(page_layer(layer, PREFIX, 4)))
    want = 0
    for n in (LONG, MIDDLE):
        dims = min(DIM, DIM * 4 * BUDGET * 2 // n)  # twice as many as in 16 bits
        want += math.ceil(n / 4) * dims + dims * 2 * 4  # and the float32 grid of each
    assert reading_of("hsa", layer).read().nbytes == want + attended(20 + 20 + SHORT, size)


def test_a_low_bit_index_is_not_counted_twice_in_float32() -> None:
    """1,951 tokens, D = 64, 256 pairs: 96 rows of bits, and 164 pairs beside a prefix of 3."""
    layer = ragged([1951], 64)
    reading = MAKERS["lowbit"]("lowbit", RaggedCache((layer,), 2000), PREFIX, 256)
    assert reading.read().nbytes == 96 * 244 + 64 * 4 + (164 + PREFIX) * 512
    assert reading.read().pairs == pytest.approx(164 + PREFIX + 96 * 1951 / 2048)


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_what_policies_hold_beside_an_archive(dtype: torch.dtype, size: int) -> None:
    layer = layer_of(dtype)
    pages = sum(2 * DIM * size * math.ceil(n / 16) for n in LENGTHS)
    fours = sum(2 * DIM * size * math.ceil(n / 4) for n in LENGTHS)
    planes = sum(3 * DIM * math.ceil(n / 8) + DIM * 4 for n in LENGTHS)
    want = {"quest": pages, "hsa": fours, "lowbit": planes, "sparq": 4 * DIM * 4, "exact-topk": 0}
    for policy, nbytes in want.items():
        assert reading_of(policy, layer).readers()[1].held_nbytes == nbytes, policy
    stored = replace(layer, pages=page_layer(layer, PREFIX, 4), planes=plane_layer(layer, PREFIX))
    for policy in ("hsa", "lowbit"):  # it is the archive's own
        assert reading_of(policy, stored).readers()[1].held_nbytes == 0, policy


def test_rocketkv_mt_holds_what_its_question_left_open() -> None:
    """Copies of the pairs that are open, with their positions, and bounds of pages of 4 of them: see METHODS."""
    lengths, heads, group = [400, 300], 2, 1
    layer = ragged(lengths, DIM)
    reading = MAKERS["rocketkv-mt"]("rocketkv-mt", RaggedCache((layer,), 500), PREFIX, BUDGET)
    readers = reading.readers()
    tokens = readers[1]
    assert tokens.held_nbytes == 0  # nothing was asked
    tail = Tail([LayerShape(heads, DIM)], 20, torch.float32, torch.device("cpu"))
    torch.manual_seed(0)
    run(reading.cache, readers, tail, [torch.randn(heads * (group + 2), 9, DIM)], heads, group)
    kept = [max(BUDGET, rocket_kept(PREFIX + n, BUDGET, DIM) - PREFIX) for n in lengths]
    copies = sum((PREFIX + n) * (pair(4) + 4) for n in kept) + 3 * 8  # positions, and where heads begin
    pages = [math.ceil(n / 4) for n in kept]
    assert tokens.held_nbytes == copies + sum(pages) * 2 * DIM * 4
    dims = [min(DIM, DIM * 4 * BUDGET // n) if n > BUDGET else 0 for n in kept]
    chosen = sum(20 if n > BUDGET else n for n in kept)
    bounds = sum(p * d * 4 for p, d in zip(pages, dims, strict=True))
    assert reading.read(tokens).nbytes == bounds + (2 * PREFIX + chosen) * pair(4)
