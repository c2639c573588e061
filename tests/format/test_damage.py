"""Damage: a flipped byte, a missing end, another kind of file. Always refused, always with an error of our own."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvz.archive import load
from kvz.errors import ArchiveError, ArchiveVersion, CorruptArchive
from kvz.format.reader import open_archive

REFUSALS = (CorruptArchive, ArchiveVersion)


def refuse(scratch: Path, data: bytes) -> str:
    """Load `data` as an archive, which must be refused; returns the message."""
    path = scratch / "damaged.kvz"
    path.write_bytes(data)
    with pytest.raises(ArchiveError) as caught:
        load(path)
    message = str(caught.value)
    assert isinstance(caught.value, REFUSALS), message
    assert message.startswith(str(path))
    assert len(message) < 500
    return message


def regions(path: Path) -> dict[str, range]:
    """Parts of an archive by name: the length, the header's metadata, table and padding, and every tensor."""
    raw, header = path.read_bytes(), open_archive(path).header
    end = raw.rindex(b"}", 0, header.data_start) + 1
    table = raw.index(b'"token_ids":{')
    parts = {"length": range(8), "metadata": range(8, table), "table": range(table, end)}
    parts["header padding"] = range(end, header.data_start)
    for name, entry in header.tensors.items():
        parts[name] = range(header.data_start + entry.begin, header.data_start + entry.end)
    return {name: part for name, part in parts.items() if len(part)}


def test_regions_cover_the_file(intact: Path) -> None:
    covered = sorted(offset for part in regions(intact).values() for offset in part)
    assert covered == list(range(intact.stat().st_size))


@settings(max_examples=500, deadline=None)
@given(st.data(), st.integers(1, 255))
def test_one_changed_byte_anywhere_is_refused(intact: Path, scratch: Path, data: st.DataObject, mask: int) -> None:
    parts = regions(intact)
    part = parts[data.draw(st.sampled_from(sorted(parts)), label="region")]
    offset = data.draw(st.integers(part.start, part.stop - 1), label="offset")
    raw = bytearray(intact.read_bytes())
    raw[offset] ^= mask
    refuse(scratch, bytes(raw))


def test_every_bit_of_the_header_length_is_refused(intact: Path, scratch: Path) -> None:
    raw = intact.read_bytes()
    for bit in range(64):
        changed = int.from_bytes(raw[:8], "little") ^ (1 << bit)
        refuse(scratch, changed.to_bytes(8, "little") + raw[8:])


@settings(max_examples=150, deadline=None)
@given(st.floats(0, 1, exclude_max=True))
@example(0.0)
def test_a_missing_end_is_refused(intact: Path, scratch: Path, share: float) -> None:
    raw = intact.read_bytes()
    refuse(scratch, raw[: int(share * len(raw))])


@pytest.mark.parametrize("missing", [1, 63, 64, 1000])
def test_a_file_cut_in_its_data_is_called_truncated_with_both_sizes(intact: Path, scratch: Path, missing: int) -> None:
    raw = intact.read_bytes()
    data_bytes = len(raw) - open_archive(intact).header.data_start
    message = refuse(scratch, raw[:-missing])
    assert "truncated" in message
    assert f"{data_bytes} bytes" in message
    assert str(data_bytes - missing) in message


def test_a_file_cut_in_its_header_is_called_truncated_with_both_sizes(intact: Path, scratch: Path) -> None:
    raw = intact.read_bytes()
    message = refuse(scratch, raw[:500])
    assert "truncated" in message
    assert str(int.from_bytes(raw[:8], "little")) in message
    assert "500" in message


@pytest.mark.parametrize("more", [b"\0", b"x" * 64, b"\0" * 4096])
def test_bytes_behind_the_last_tensor_are_refused(intact: Path, scratch: Path, more: bytes) -> None:
    assert f"{len(more)} bytes follow" in refuse(scratch, intact.read_bytes() + more)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 4096])
def test_a_file_of_zeros_is_refused(scratch: Path, size: int) -> None:
    assert "not a .kvz archive" in refuse(scratch, bytes(size))


@pytest.mark.parametrize("text", [b"Just a letter, nothing more.", b"PK\x03\x04" + bytes(60), b"{}" * 40])
def test_another_kind_of_file_is_refused(scratch: Path, text: bytes) -> None:
    assert "not a .kvz archive" in refuse(scratch, text)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "KVZ"}, {"kvz_version": "1.0"}])
def test_another_safetensors_file_is_refused(scratch: Path, metadata: dict[str, str] | None) -> None:
    data = safetensors.torch.save({"a": torch.zeros(3)}, metadata)
    assert "not a .kvz archive" in refuse(scratch, data)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="a folder"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["missing.kvz", "no/such/folder/a.kvz", "text.kvz/a.kvz", "zero\0byte.kvz", "n" * 300])
def test_a_file_that_cannot_be_there_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.kvz").write_text("no folder")
    with pytest.raises(ArchiveError, match=r"no such archive|cannot read"):
        load(tmp_path / name)


@pytest.mark.parametrize("length", [99_999_999, 2**31, 2**40, 2**62, 2**64 - 1])
def test_a_header_length_that_lies_costs_no_memory(scratch: Path, length: int) -> None:
    data = length.to_bytes(8, "little") + b'{"__metadata__":{}}'
    tracemalloc.start()
    began = time.perf_counter()
    refuse(scratch, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert time.perf_counter() - began < 2
