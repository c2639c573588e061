"""What is written comes back bit for bit: here, in another process, and through the plain safetensors library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from kvz.archive import load
from tests.format.archives import Sample, make_sample, same_bits, tensors_of


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Archives of any raggedness, heads with a single pair among them."""
    layers = draw(st.integers(1, 4))
    kept = [tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))) for _ in range(layers)]
    for index in range(1, layers):
        if draw(st.booleans()):
            kept[index] = ()  # a sliding layer
    return make_sample(
        tuple(kept),
        dims=[draw(st.sampled_from([16, 64, 80])) for _ in range(layers)],
        dtype=draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32])),
        prefix=draw(st.integers(0, 5)),
        text=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
        windows={n: draw(st.integers(1, 60)) for n, row in enumerate(kept) if not row},
    )


def assert_holds(path: Path, sample: Sample) -> None:
    archive = load(path)
    assert archive.cache.logical_length == sample.cache.logical_length
    read, written = tensors_of(archive.cache), tensors_of(sample.cache)
    assert [name for name, tensor in written.items() if not same_bits(read[name], tensor)] == []
    if sample.token_ids is None:
        assert archive.token_ids is None
    else:
        assert archive.token_ids is not None
        assert same_bits(archive.token_ids, sample.token_ids)
    checksums = archive.manifest.checksums
    assert archive.manifest == type(sample.manifest)(**{**_fields(sample), "checksums": checksums})


def _fields(sample: Sample) -> dict[str, object]:
    return {name: getattr(sample.manifest, name) for name in sample.manifest.__struct_fields__}


@settings(max_examples=60, deadline=None)
@given(samples())
def test_any_ragged_cache_comes_back_bit_for_bit(scratch: Path, sample: Sample) -> None:
    assert_holds(sample.write(scratch / "a.kvz", overwrite=True), sample)


@settings(max_examples=20, deadline=None)
@given(samples())
def test_any_safetensors_reader_can_open_it(scratch: Path, sample: Sample) -> None:
    path = sample.write(scratch / "b.kvz", overwrite=True)
    plain = safetensors.torch.load_file(path)
    assert all(same_bits(plain[name], tensor) for name, tensor in tensors_of(sample.cache).items())
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["kvz_version"]) == ("kvz", "1.2")


def test_special_values_come_back(tmp_path: Path) -> None:
    sample = make_sample(((4,),), dtype=torch.bfloat16, prefix=0)
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40], dtype=torch.bfloat16)
    sample.cache.layers[0].keys[:, 0] = odd
    assert_holds(sample.write(tmp_path / "a.kvz"), sample)


def test_strided_tensors_are_written_as_they_read(tmp_path: Path) -> None:
    sample = make_sample()
    layer = sample.cache.layers[0]
    strided = type(layer)(layer.keys.t().contiguous().t(), layer.values, layer.offsets, layer.positions)
    assert not strided.keys.is_contiguous()
    cache = type(sample.cache)((strided, *sample.cache.layers[1:]), sample.cache.logical_length)
    assert_holds(Sample(sample.manifest, cache, sample.token_ids).write(tmp_path / "a.kvz"), sample)


COPY = """
import sys, torch
from pathlib import Path
from kvz.format.reader import open_archive
from kvz.format.tensors import read_cache
from kvz.format.writer import write_archive
file = open_archive(sys.argv[1])
cache, ids = read_cache(file, torch.device("cpu"))
write_archive(Path(sys.argv[2]), file.manifest, cache, ids)
"""


def test_another_process_reads_and_writes_the_same(intact: Path, sample: Sample, tmp_path: Path) -> None:
    copy = tmp_path / "copy.kvz"
    subprocess.run([sys.executable, "-c", COPY, str(intact), str(copy)], check=True, timeout=60)
    assert copy.read_bytes() == intact.read_bytes()
    assert_holds(copy, sample)


def test_replacing_a_file_that_is_mapped_does_not_touch_what_was_loaded(tmp_path: Path, sample: Sample) -> None:
    path = sample.write(tmp_path / "a.kvz")
    archive = load(path)
    make_sample(seed=9).write(path, overwrite=True)
    assert all(same_bits(tensors_of(archive.cache)[k], t) for k, t in tensors_of(sample.cache).items())
    archive.save(path, overwrite=True)
    assert_holds(path, sample)


def test_without_text_no_id_is_in_the_file(tmp_path: Path) -> None:
    path = make_sample(text=False).write(tmp_path / "a.kvz")
    assert load(path).token_ids is None
    assert "token_ids" not in safetensors.torch.load_file(path)


def test_verify_false_reads_without_comparing_checksums(tmp_path: Path, intact: Path) -> None:
    from kvz.errors import CorruptArchive
    from kvz.format.reader import open_archive

    header = open_archive(intact).header
    data = bytearray(intact.read_bytes())
    data[header.data_start + header.tensors["layers.1.values"].begin] ^= 1
    path = tmp_path / "flipped.kvz"
    path.write_bytes(data)
    assert load(path, verify=False).cache.pairs == load(intact).cache.pairs
    with pytest.raises(CorruptArchive, match=r"layers\.1\.values"):
        load(path)
