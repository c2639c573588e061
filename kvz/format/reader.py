"""Reading an archive: the header first, then tensors through the safetensors library, memory-mapped on a CPU.

Nothing in a file is believed before it is checked: sizes against the file, tensors against the manifest, bytes against
their checksums, offsets and positions against each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from kvz.errors import ArchiveError, CorruptArchive
from kvz.format.header import Header, TensorEntry, read_header
from kvz.format.manifest import Manifest, decode_manifest

__all__ = ["ArchiveFile", "archive_bytes", "open_archive"]

_BLOCK = 1 << 22


@dataclass(frozen=True)
class ArchiveFile:
    """An archive on disk whose header and manifest have been checked; tensors have not been read yet."""

    path: Path
    header: Header
    manifest: Manifest

    def verify_checksums(self) -> Iterator[int]:
        """Compare every tensor with its checksum, yielding the bytes checked so far; raises CorruptArchive."""
        try:
            yield from self._verify_checksums()
        except OSError as error:
            raise ArchiveError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _verify_checksums(self) -> Iterator[int]:
        checked = 0
        with self.path.open("rb") as file:
            for entry in sorted(self.header.tensors.values(), key=lambda e: e.begin):
                file.seek(self.header.data_start + entry.begin)
                digest, left = xxhash.xxh3_128(), entry.nbytes
                while left and (block := file.read(min(left, _BLOCK))):
                    digest.update(block)
                    left -= len(block)
                if digest.hexdigest() != self.manifest.checksums[entry.name]:
                    raise CorruptArchive(
                        f"{self.path} is damaged: tensor '{entry.name}' does not match its checksum; compress again"
                    )
                checked += entry.nbytes
                yield checked


def open_archive(path: str | Path) -> ArchiveFile:
    """Read and check header and manifest. Imports neither torch nor numpy.

    Raises ArchiveError (no such file), CorruptArchive or ArchiveVersion.
    """
    path = Path(path)
    header = read_header(path)
    manifest = decode_manifest(header.metadata.get("manifest", ""), str(path))
    for name, wanted in _expected(manifest).items():
        entry = header.tensors.get(name)
        if entry is None:
            raise CorruptArchive(f"{path} is damaged: tensor '{name}' is missing")
        if (entry.dtype, entry.shape) != wanted:
            raise CorruptArchive(
                f"{path} is damaged: tensor '{name}' is {entry.dtype[:20]} {list(entry.shape)}, "
                f"the manifest says {wanted[0]} {list(wanted[1])}"
            )
    if missing := header.tensors.keys() - manifest.checksums.keys():
        raise CorruptArchive(f"{path} is damaged: tensor '{min(missing)[:60]}' has no checksum")
    return ArchiveFile(path, header, manifest)


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
    dtype = _DTYPES.get(manifest.model.dtype, "?")
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
