"""Reading an archive from one open file: the header first, then the checksums, then the bytes of the tensors.

Nothing in a file is believed before it is checked: sizes against the file, tensors against the manifest, bytes against
their checksums, offsets and positions against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from kvz.errors import CorruptArchive
from kvz.format.header import ALIGNMENT, Header, TensorEntry, read_header
from kvz.format.manifest import Manifest, decode_manifest
from kvz.format.open_file import OpenFile

__all__ = ["PADDING", "ArchiveFile", "archive_bytes", "open_archive", "read_archive", "unchanged"]

PADDING = re.compile("pad[.][0-9]+")
"""Names of padding tensors."""

_BLOCK = 1 << 22
_NAMES = re.compile(
    "token_ids|layers[.](0|[1-9][0-9]*)[.]"
    "(offsets|positions|keys|values|planes|plane_ranges|page_max|page_min|page_grid)"
)
_PADDING_SHAPES = {(count,) for count in range(1, ALIGNMENT)}


@dataclass(frozen=True)
class ArchiveFile:
    """An archive on disk whose header and manifest have been checked; tensors have not been read yet."""

    file: OpenFile
    header: Header
    manifest: Manifest

    @property
    def path(self) -> Path:
        """The name that the file was opened under."""
        return self.file.path

    def data(self, mapped: bool) -> memoryview:
        """The data section, mapped or read into memory. Raises ArchiveError."""
        return self.file.contents(self.header.data_start, mapped)

    def read(self, name: str) -> bytes:
        """The bytes of one tensor, compared with its checksum. Raises ArchiveError or CorruptArchive."""
        entry = self.header.tensors[name]
        data = bytearray(entry.nbytes)
        self.file.read_into(self.header.data_start + entry.begin, memoryview(data))
        self._compare(entry, xxhash.xxh3_128_hexdigest(data))
        return bytes(data)

    def verify_checksums(self, data: memoryview | None = None) -> Iterator[int]:
        """Compare every tensor with its checksum, yielding the bytes checked so far; raises CorruptArchive.

        The bytes are read from the file, unless its `data` section is in memory already.
        """
        checked, block = 0, memoryview(bytearray(_BLOCK))
        for entry in sorted(self.header.tensors.values(), key=lambda e: e.begin):
            digest = xxhash.xxh3_128()
            for start in range(entry.begin, entry.end, _BLOCK):
                end = min(start + _BLOCK, entry.end)
                if data is not None:
                    digest.update(data[start:end])
                else:
                    self.file.read_into(self.header.data_start + start, block[: end - start])
                    digest.update(block[: end - start])
            self._compare(entry, digest.hexdigest())
            checked += entry.nbytes
            yield checked

    def _compare(self, entry: TensorEntry, digest: str) -> None:
        if digest != self.manifest.checksums[entry.name]:
            self.file.check_unchanged()
            raise CorruptArchive(
                f"{self.path} is damaged: tensor '{entry.name}' does not match its checksum; compress again"
            )


@contextmanager
def unchanged(file: OpenFile) -> Iterator[None]:
    """What is found or refused in the block is of a file that nobody wrote to meanwhile; else raises ArchiveError."""
    try:
        yield
    except CorruptArchive:
        file.check_unchanged()
        raise
    file.check_unchanged()


def open_archive(path: str | Path) -> ArchiveFile:
    """Read and check header and manifest. Imports neither torch nor numpy.

    Raises ArchiveError (no such file), CorruptArchive or ArchiveVersion.
    """
    file = OpenFile(Path(path))
    with unchanged(file):
        header = read_header(file)
        manifest = decode_manifest(header.metadata.get("manifest", ""), str(path))
        _check_tensors(header, manifest, file.path)
    return ArchiveFile(file, header, manifest)


def _check_tensors(header: Header, manifest: Manifest, path: Path) -> None:
    """The file must have the tensors that its manifest calls for, no others of their names, and all their checksums."""
    expected = _expected(manifest)
    for name, wanted in expected.items():
        entry = header.tensors.get(name)
        if entry is None:
            raise CorruptArchive(f"{path} is damaged: tensor '{name}' is missing")
        if (entry.dtype, entry.shape) != wanted:
            raise CorruptArchive(
                f"{path} is damaged: tensor '{name}' is {entry.dtype[:20]} {list(entry.shape)}, "
                f"the manifest says {wanted[0]} {list(wanted[1])}"
            )
    for name, entry in header.tensors.items():
        if name not in expected and _NAMES.fullmatch(name):
            raise CorruptArchive(f"{path} is damaged: the manifest says that there is no tensor '{name[:60]}'")
        if PADDING.fullmatch(name) and not (entry.dtype == "U8" and entry.shape in _PADDING_SHAPES):
            raise CorruptArchive(f"{path} is damaged: '{name[:60]}' is no padding of 1 to 63 bytes")
    if missing := header.tensors.keys() - manifest.checksums.keys():
        raise CorruptArchive(f"{path} is damaged: tensor '{min(missing)[:60]}' has no checksum")
    if missing := manifest.checksums.keys() - header.tensors.keys():
        raise CorruptArchive(f"{path} is damaged: there is a checksum of '{min(missing)[:60]}', and no such tensor")


def read_archive(path: str | Path, verify: bool, mmap: bool | None) -> tuple[ArchiveFile, memoryview | None]:
    """Open an archive, and `verify` its checksums; its data section comes with it where that is not to be mapped.

    `mmap` None is to map it unless it lies on a network file system. Imports neither torch nor numpy. Raises as
    `open_archive` does.
    """
    archive = open_archive(path)
    mapped = archive.file.is_local if mmap is None else mmap
    data = None if mapped else archive.data(mapped=False)
    if verify:
        for _ in archive.verify_checksums(data):
            pass
    return archive, data


def archive_bytes(header: Header) -> dict[str, int]:
    """Bytes of the file by kind of tensor (keys, values, ...), padding and header as their own kinds."""
    sizes: dict[str, int] = {"header": header.data_start}
    for entry in header.tensors.values():
        kind = _kind(entry)
        sizes[kind] = sizes.get(kind, 0) + entry.nbytes
    return sizes


def _kind(entry: TensorEntry) -> str:
    return "padding" if entry.name.startswith("pad.") else entry.name.rpartition(".")[2]


_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def _expected(manifest: Manifest) -> dict[str, tuple[str, tuple[int, ...]]]:
    """dtype and shape of every tensor that the manifest calls for."""
    dtype = _DTYPES[manifest.model.dtype]
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    if manifest.source.text_included:
        expected["token_ids"] = ("I32", (manifest.logical_length,))
    for index, layer in enumerate(manifest.model.layers):
        pairs = manifest.stored_pairs(index)
        expected[f"layers.{index}.offsets"] = ("I64", (layer.kv_heads + 1,))
        expected[f"layers.{index}.positions"] = ("I32", (pairs,))
        expected[f"layers.{index}.keys"] = (dtype, (pairs, layer.head_dim))
        expected[f"layers.{index}.values"] = (dtype, (pairs, layer.head_dim))
        if layer.window is None:
            expected |= {f"layers.{index}.{name}": spec for name, spec in _expected_index(manifest, index, dtype)}
    return expected


def _expected_index(manifest: Manifest, index: int, dtype: str) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """The same for the indexes of a full layer, by the last part of their names."""
    layer, planes, pages = manifest.model.layers[index], manifest.planes, manifest.pages
    if planes is not None:
        yield "planes", ("U8", (planes.bits * layer.head_dim, manifest.index_units(index, 8)))
        yield "plane_ranges", ("F32", (layer.kv_heads, layer.head_dim))
    if pages is not None:
        shape = (layer.head_dim, manifest.index_units(index, pages.size))
        for name in ("page_max", "page_min"):
            yield name, ("U8" if pages.bits == 8 else dtype, shape)
        if pages.bits == 8:
            yield "page_grid", ("F32", (layer.kv_heads, 2, layer.head_dim))
