"""The safetensors header of an archive: laying it out, and parsing one that is not to be trusted.

A file is: 8 bytes, little-endian, the length N of the header; N bytes of JSON; the data section. In an archive N + 8 is
a multiple of 64, and so is every tensor's offset (padding tensors fill the gaps, since safetensors allows no holes).
Nothing here imports torch or numpy: `kvz inspect` is quick.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import xxhash

from kvz.errors import ArchiveVersion, CorruptArchive
from kvz.format.open_file import OpenFile

__all__ = [
    "ALIGNMENT",
    "DTYPE_BYTES",
    "FORMAT_VERSION",
    "Header",
    "TensorEntry",
    "layout",
    "read_header",
    "render_header",
]

ALIGNMENT = 64
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "U8": 1}
"""Bytes an element of every dtype that format 1.2 uses."""

FORMAT_VERSION = "1.2"

_MAX_HEADER = 100_000_000  # the safetensors library's own limit, bytes
_MAX_DIMENSIONS = 8
_NO_CHECKSUM = "0" * 32
_CHECKSUM = re.compile("[0-9a-f]{32}")
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: safetensors dtype name, shape, and its bytes begin:end in the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """A checked header: tensors by name, string metadata, where the data section starts, how long the file is."""

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    data_start: int
    file_size: int


def layout(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[TensorEntry]:
    """Place tensors one after another, each at a multiple of 64 bytes, with `pad.N` tensors filling the gaps."""
    entries: list[TensorEntry] = []
    at = 0
    for name, dtype, shape in tensors:
        end = at + _count(shape) * DTYPE_BYTES[dtype]
        entries.append(TensorEntry(name, dtype, shape, at, end))
        at = -(-end // ALIGNMENT) * ALIGNMENT
        if at > end:
            entries.append(TensorEntry(f"pad.{len(entries)}", "U8", (at - end,), end, at))
    return entries


def render_header(entries: Iterable[TensorEntry], metadata: dict[str, str]) -> bytes:
    """The length and the JSON, padded with spaces to a multiple of 64 bytes, and its own checksum filled in.

    The checksum is the xxh3-128 of these very bytes with 32 zeros in its place.
    """
    table: dict[str, Any] = {"__metadata__": {**metadata, "header_checksum": _NO_CHECKSUM}}
    for entry in entries:
        table[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (entry.begin, entry.end)}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    blank = len(text).to_bytes(8, "little") + text
    mark = f'"header_checksum":"{_NO_CHECKSUM}"'
    digest = xxhash.xxh3_128_hexdigest(blank)
    return blank.replace(mark.encode(), mark.replace(_NO_CHECKSUM, digest).encode(), 1)


def read_header(file: OpenFile) -> Header:
    """Read and check the header of a kvz archive against the file's size, and against its own checksum.

    Raises ArchiveError if the file cannot be read, CorruptArchive if it is not an archive or is damaged.
    """
    path, size = file.path, file.size
    if size < 8:
        _refuse(path, f"is not a .kvz archive ({size} bytes, no header)")
    start = bytearray(8)
    file.read_into(0, memoryview(start))
    length = int.from_bytes(start, "little")
    if length > _MAX_HEADER:
        _refuse(path, f"is not a .kvz archive ({size} bytes, no header)")
    if 8 + length > size:
        _refuse(path, f"is not a .kvz archive, or is truncated: a header of {length} bytes, a file of {size}")
    raw = start + bytes(length)
    file.read_into(8, memoryview(raw)[8:])
    return _parse(bytes(raw), path, size)


def _parse(raw: bytes, path: Path, size: int) -> Header:
    try:
        text = raw[8:].decode().rstrip(" ")
        if not (text.startswith("{") and text.endswith("}")):
            raise ValueError("not one object and spaces")
        table = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError):
        _refuse(path, "is not a .kvz archive, or its header is damaged")
    metadata = table.pop("__metadata__", None) if isinstance(table, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _refuse(path, "is not a .kvz archive (a safetensors file without metadata?)")
    if metadata.get("format") != "kvz":
        _refuse(path, "is not a .kvz archive (its metadata does not say format: kvz)")
    checksum = metadata.get("header_checksum", "")
    if not _CHECKSUM.fullmatch(checksum) or raw.count(checksum.encode()) != 1:
        _refuse(path, "has no usable header checksum; it is damaged")
    blank = raw.replace(checksum.encode(), _NO_CHECKSUM.encode())
    if xxhash.xxh3_128_hexdigest(blank) != checksum:
        _refuse(path, "is damaged: the header's checksum does not match")
    _check_version(metadata.get("kvz_version", ""), path)
    tensors = {name: _entry(path, name, spec) for name, spec in table.items()}
    _check_cover(path, tensors, size - len(raw))
    return Header(tensors, metadata, len(raw), size)


def _entry(path: Path, name: str, spec: Any) -> TensorEntry:
    """A tensor's entry, checked. An unknown dtype passes: a newer minor version may use it for a new tensor."""
    try:
        dtype, shape, (begin, end) = spec["dtype"], spec["shape"], spec["data_offsets"]
        sound = isinstance(dtype, str) and isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
        sound = sound and all(type(n) is int and 0 <= n < 2**62 for n in (*shape, begin, end)) and begin <= end
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        _refuse(path, f"is damaged: tensor '{name[:60]}' has an impossible dtype, shape or place")
    if dtype in DTYPE_BYTES and end - begin != _count(shape) * DTYPE_BYTES[dtype]:
        _refuse(path, f"is damaged: tensor '{name[:60]}' of shape {shape} does not fit its {end - begin} bytes")
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _check_cover(path: Path, tensors: dict[str, TensorEntry], data_bytes: int) -> None:
    """The tensors must cover the data section exactly: no holes, no overlap, nothing behind."""
    at = 0
    for entry in sorted(tensors.values(), key=lambda e: (e.begin, e.end)):
        if entry.begin != at:
            _refuse(path, f"is damaged: tensor '{entry.name[:60]}' overlaps another or leaves a hole")
        at = entry.end
    if at > data_bytes:
        _refuse(path, f"is truncated: its tensors need {at} bytes of data, the file has {data_bytes}")
    if at < data_bytes:
        _refuse(path, f"is damaged: {data_bytes - at} bytes follow the last tensor")


def _check_version(version: str, path: Path) -> None:
    """Accept this major version with any minor one; raises ArchiveVersion for another major one."""
    match = _VERSION.fullmatch(version)
    if match is None:
        _refuse(path, "is damaged: it has no format version")
    if match[1] != FORMAT_VERSION.partition(".")[0]:
        raise ArchiveVersion(
            f"{path} has format version {version}, this kvz reads 1.x; use the version of kvz that wrote it, or newer"
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


def _count(shape: Iterable[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _refuse(path: Path, why: str) -> NoReturn:
    raise CorruptArchive(f"{path} {why}")
