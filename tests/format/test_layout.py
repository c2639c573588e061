"""The header and where tensors lie: every one at a multiple of 64 bytes, no holes, the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.format.header import ALIGNMENT, DTYPE_BYTES, layout, render_header
from kvz.format.reader import archive_bytes, open_archive
from tests.format.archives import NO_CHECKSUM, Sample, make_sample

shapes = st.lists(st.integers(0, 70), max_size=3).map(tuple)
tensors = st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), shapes), min_size=1, max_size=12)


def element_count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


@given(tensors)
def test_layout_aligns_every_tensor_and_leaves_no_hole(specs: list[tuple[str, tuple[int, ...]]]) -> None:
    entries = layout((f"t{n}", dtype, shape) for n, (dtype, shape) in enumerate(specs))
    ours = [entry for entry in entries if not entry.name.startswith("pad.")]
    assert [(e.dtype, e.shape) for e in ours] == specs
    assert all(e.begin % ALIGNMENT == 0 for e in ours)
    assert all(e.nbytes == element_count(e.shape) * DTYPE_BYTES[e.dtype] for e in entries)
    assert [e.begin for e in entries] == [0, *(e.end for e in entries[:-1])]
    assert all(0 < e.nbytes < ALIGNMENT for e in entries if e.name.startswith("pad."))
    assert len({e.name for e in entries}) == len(entries)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=80), max_size=4))
def test_header_is_aligned_and_signs_itself(metadata: dict[str, str]) -> None:
    metadata.pop("header_checksum", None)
    raw = render_header(layout([("a", "F32", (3, 5))]), metadata)
    table = json.loads(raw[8:])
    checksum = table["__metadata__"].pop("header_checksum")
    assert table["__metadata__"] == metadata
    assert len(raw) % ALIGNMENT == 0
    assert int.from_bytes(raw[:8], "little") == len(raw) - 8
    assert xxhash.xxh3_128_hexdigest(raw.replace(checksum.encode(), NO_CHECKSUM.encode())) == checksum


@pytest.mark.parametrize("dim", [1, 3, 16, 80])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_data_section_and_tensors_lie_at_multiples_of_64(tmp_path: Path, dim: int, dtype: torch.dtype) -> None:
    path = make_sample(((3, 5), (1, 2)), [dim, dim], dtype, prefix=1).write(tmp_path / "a.kvz")
    header = open_archive(path).header
    named = {name: e for name, e in header.tensors.items() if not name.startswith("pad.")}
    assert header.data_start % ALIGNMENT == 0
    assert {name: e.begin % ALIGNMENT for name, e in named.items()} == dict.fromkeys(named, 0)
    assert len(named) == 9


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (make_sample(seed=3).write(tmp_path / name).read_bytes() for name in ("a.kvz", "b.kvz"))
    assert first == second
    assert make_sample(seed=4).write(tmp_path / "c.kvz").read_bytes() != first


def test_writing_returns_the_size_and_tells_every_byte(tmp_path: Path, sample: Sample) -> None:
    from kvz.format.writer import write_archive

    path, told = tmp_path / "a.kvz", []
    size = write_archive(path, sample.manifest, sample.cache, sample.token_ids, done=told.append)
    header = open_archive(path).header
    assert size == path.stat().st_size == header.file_size == sum(archive_bytes(header).values())
    assert sum(told) == size - header.data_start


def test_file_is_hardly_larger_than_the_pairs_kept(tmp_path: Path) -> None:
    kept = ((4000, 700, 1300), (100, 5000, 900))
    path = make_sample(kept, [64, 64], torch.bfloat16, prefix=5).write(tmp_path / "a.kvz")
    pairs = sum(map(sum, kept)) + 6 * 5
    assert pairs * 2 * 64 * 2 <= path.stat().st_size <= pairs * 2 * 64 * 2 * 1.02 + 100_000


def test_archive_bytes_names_what_takes_the_room(intact: Path, sample: Sample) -> None:
    sizes = archive_bytes(open_archive(intact).header)
    keys = sum(layer.keys.nbytes for layer in sample.cache.layers)
    assert sizes["keys"] == sizes["values"] == keys
    assert sizes["offsets"] == 3 * 3 * 8
    assert set(sizes) == {"header", "token_ids", "offsets", "positions", "keys", "values", "padding"}


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_offsets_past_two_gigabytes_do_not_overflow(first: int, second: int) -> None:
    entries = layout([("a", "BF16", (first, 64)), ("b", "F32", (second, 80))])
    assert entries[-1].end >= first * 128 + second * 320
    assert entries[-1].end - first * 128 - second * 320 < 2 * ALIGNMENT
