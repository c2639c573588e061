"""Indexes: the same whether stored or made, bounds that stay bounds in 8 bits, and what of them is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import kvz
from kvz.cache.bit_planes import plane_layer
from kvz.cache.index import with_index
from kvz.cache.index_plan import NO_INDEX, IndexPlan, make_index_plan
from kvz.cache.pages import page_layer, rounded_outward
from kvz.cache.ragged import RaggedLayer
from kvz.compression import compress
from kvz.config import Decoding
from kvz.errors import CorruptArchive, UsageError
from kvz.format.manifest import PagesInfo, PlanesInfo
from kvz.kernels.page_bounds import pages_of
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.format.archives import make_sample
from tests.near import rounding
from tests.tiny import make_model_folder

PLANS = [IndexPlan(), NO_INDEX, IndexPlan(0, 4), IndexPlan(0, 3, 8), IndexPlan(2, 16, 8)]


def layer_of(lengths: list[int], dim: int, seed: int, dtype: torch.dtype, prefix: int = 2) -> RaggedLayer:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *(prefix + n for n in lengths)]).cumsum(0)
    keys = (torch.randn(int(offsets[-1]), dim, generator=generator) * 10.0 ** (seed % 5 - 2)).to(dtype)
    return RaggedLayer(keys, keys.clone(), offsets, torch.zeros(len(keys), dtype=torch.int32))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    size=st.integers(1, 9),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    away=st.sampled_from([0.0, 3.0, -1e4]),
)
def test_bounds_in_8_bits_are_bounds_and_close(
    lengths: list[int], size: int, seed: int, dtype: torch.dtype, away: float
) -> None:
    layer = layer_of(lengths, 8, seed, dtype)
    exact = page_layer(replace(layer, keys=layer.keys + away), 2, size)
    rough = rounded_outward(exact)
    assert rough.extremes.dtype == torch.uint8
    for head, length in enumerate(lengths):
        if not length:
            continue
        (upper, lower), (more, less) = exact.head(head), rough.head(head)
        assert (more >= upper).all()
        assert (less <= lower).all()
        step = (upper.amax(1) - lower.amin(1)) / 255
        assert (more - upper <= 1.1 * step[:, None] + rounding(1) * upper.abs()).all()
        assert (lower - less <= 1.1 * step[:, None] + rounding(1) * lower.abs()).all()


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_index_is_that_of_the_archive_in_memory(
    tiny_folder: Path, tmp_path: Path, plan: IndexPlan, dtype: str
) -> None:
    model = load_model(str(tiny_folder), "cpu", dtype)
    archive = compress(TEXT * 2, model, ratio=0.4, index=plan)
    archive.save(tmp_path / "a.kvz")
    loaded = kvz.load(tmp_path / "a.kvz")
    assert loaded.manifest.pages == (PagesInfo(plan.page_size, plan.page_bits) if plan.page_size else None)
    assert loaded.manifest.planes == (PlanesInfo(plan.planes) if plan.planes else None)
    prefix = loaded.manifest.prompt.prefix_tokens
    for made, read in zip(archive.cache.layers, loaded.cache.layers, strict=True):
        assert (read.planes is None) == (not plan.planes)
        assert (read.pages is None) == (not plan.page_size)
        if read.planes is not None and made.planes is not None:
            fresh = plane_layer(read, prefix, plan.planes)
            for other in (made.planes, fresh):
                assert torch.equal(other.planes, read.planes.planes)
                assert torch.equal(other.ranges, read.planes.ranges)
                assert other.bounds == read.planes.bounds
        if read.pages is not None and made.pages is not None:
            fresh_pages = page_layer(read, prefix, plan.page_size)
            if plan.page_bits == 8:
                fresh_pages = rounded_outward(fresh_pages)
            for other_pages in (made.pages, fresh_pages):
                assert torch.equal(other_pages.extremes, read.pages.extremes)
                assert other_pages.bounds == read.pages.bounds
            assert pages_of(read, prefix, None) is read.pages
            assert pages_of(read, prefix, 5).size == 5
    for policy in ("lowbit", "hsa"):
        asked = [a.session(model, Decoding(policy, 32)).ask("Where is the key?", 8).ids for a in (archive, loaded)]
        assert asked[0] == asked[1]


def test_stored_planes_are_as_the_specification_says(tiny: LanguageModel, tmp_path: Path) -> None:
    """numpy.packbits as another writer of the same bits."""
    archive = compress(TEXT, tiny, ratio=0.5)
    archive.save(tmp_path / "a.kvz")
    prefix, bits = archive.manifest.prompt.prefix_tokens, archive.manifest.planes.bits  # type: ignore[union-attr]
    with safe_open(str(tmp_path / "a.kvz"), framework="np") as file:
        keys, offsets = file.get_tensor("layers.1.keys"), file.get_tensor("layers.1.offsets")
        planes, ranges = file.get_tensor("layers.1.planes"), file.get_tensor("layers.1.plane_ranges")
    at = 0
    for head in range(2):
        own = keys[offsets[head] + prefix : offsets[head + 1]]
        low, span = own.min(0), own.max(0) - own.min(0)
        assert np.array_equal(span, ranges[head])
        cells = np.minimum(np.floor((own - low) / span * 2**bits), 2**bits - 1).astype(int)
        rows = np.concatenate([(cells >> (bits - 1 - b)).T & 1 for b in range(bits)])
        want = np.packbits(rows.astype(np.uint8), axis=1, bitorder="little")
        assert np.array_equal(planes[:, at : at + want.shape[1]], want)
        at += want.shape[1]
    assert at == planes.shape[1]


def test_sliding_layers_have_no_index(tmp_path: Path) -> None:
    model = load_model(str(make_model_folder(tmp_path / "m", "gemma3")), "cpu", "float32")
    archive = compress(TEXT, model, ratio=0.5, index=IndexPlan(3, 4))
    archive.save(tmp_path / "a.kvz")
    layers = kvz.load(tmp_path / "a.kvz").cache.layers
    assert [layer.planes is None for layer in layers] == [layer.window is not None for layer in layers]


@pytest.mark.parametrize(
    ("name", "shape"), [("planes", (5, 5)), ("plane_ranges", (1, 16)), ("page_max", (16, 1)), ("page_min", (2, 2))]
)
def test_an_index_of_another_shape_or_none_at_all_is_refused(tmp_path: Path, name: str, shape: tuple[int, int]) -> None:
    sample = make_sample()
    cache = with_index(sample.cache, 2, IndexPlan(3, 4))
    manifest = msgspec.structs.replace(sample.manifest, planes=PlanesInfo(3), pages=PagesInfo(4))
    whole = replace(sample, manifest=manifest, cache=cache)
    whole.write(tmp_path / "whole.kvz")
    kvz.load(tmp_path / "whole.kvz")
    replace(whole, cache=sample.cache).write(tmp_path / "none.kvz")
    with pytest.raises(CorruptArchive, match="is missing"):
        kvz.load(tmp_path / "none.kvz")
    first = cache.layers[0]
    wrong = torch.zeros(shape, dtype=torch.uint8 if name == "planes" else torch.float32)
    assert first.planes is not None
    assert first.pages is not None
    changed = {
        "planes": replace(first, planes=replace(first.planes, planes=wrong)),
        "plane_ranges": replace(first, planes=replace(first.planes, ranges=wrong)),
        "page_max": replace(first, pages=replace(first.pages, extremes=wrong.repeat(2, 1))),
        "page_min": replace(first, pages=replace(first.pages, extremes=wrong.repeat(2, 1))),
    }[name]
    damaged = replace(whole, cache=replace(cache, layers=(changed, *cache.layers[1:])))
    damaged.write(tmp_path / "wrong.kvz")
    with pytest.raises(CorruptArchive, match="the manifest says"):
        kvz.load(tmp_path / "wrong.kvz")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("bits",), "no index 'bits'"),
        (("none,pages",), "leave the others out"),
        (("planes", 4), "add --index pages"),
        (("planes", None, 8), "add --index pages"),
        (("pages", 0), "1 to 4096"),
        (("pages", "x"), "auto, or 1"),
        (("pages", None, 4), "16 or 8"),
        (("",), "no index ''"),
    ],
)
def test_plans_that_make_no_sense(options: tuple[object, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_index_plan(*options)  # type: ignore[arg-type]


def test_plans() -> None:
    assert make_index_plan() == make_index_plan("planes") == IndexPlan()
    assert make_index_plan("none") == NO_INDEX
    assert make_index_plan("pages", "auto") == IndexPlan(0, 4)
    assert make_index_plan("planes, pages", "7", 8) == IndexPlan(3, 7, 8)


@pytest.mark.parametrize(
    ("decoding", "words"),
    [(("lowbit", 64, 4), "for policy 'hsa'"), (("auto", None, 4), "for policy"), (("hsa", 64, 33), "half the budget")],
)
def test_page_sizes_that_do_not_fit(decoding: tuple[str, int | None, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Decoding(*decoding)
