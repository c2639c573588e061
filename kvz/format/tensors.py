"""An opened archive's tensors as a cache, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvz.cache.bit_planes import BitPlanes, plane_bounds
from kvz.cache.pages import PagedLayer, page_bounds
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.errors import CorruptArchive
from kvz.format.manifest import Manifest
from kvz.format.reader import ArchiveFile, unchanged

__all__ = ["Find", "check_ids", "layer_of", "read_cache", "read_tensor"]

_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
}
Find = Callable[[str], Tensor]


def read_cache(
    archive: ArchiveFile, device: torch.device, data: memoryview | None = None
) -> tuple[RaggedCache, Tensor | None]:
    """The cache and the token ids (`[prefix + S]` int32, None if left out) of an archive.

    On a CPU the tensors are views of `data`, the archive's data section, which is mapped unless it is given. Raises
    CorruptArchive if ids, offsets or positions are not what the manifest says.
    """
    manifest = archive.manifest
    data = archive.data(mapped=True) if data is None else data

    def find(name: str) -> Tensor:
        return _view(archive, data, name)

    with unchanged(archive.file):
        token_ids = find("token_ids") if manifest.source.text_included else None
        if token_ids is not None:
            check_ids(token_ids, archive)
        layers = []
        for index in range(len(manifest.model.layers)):
            layer = layer_of(find, archive, index)
            layers.append(layer if device.type == "cpu" else layer.to(device))
    return RaggedCache(tuple(layers), manifest.logical_length), token_ids


def read_tensor(archive: ArchiveFile, name: str) -> Tensor:
    """A copy of one tensor, read from the file. Raises ArchiveError."""
    entry = archive.header.tensors[name]
    read = memoryview(bytearray(entry.nbytes))
    archive.file.read_into(archive.header.data_start + entry.begin, read)
    return _tensor(read, 0, entry.dtype, entry.shape)


def layer_of(find: Find, archive: ArchiveFile, index: int) -> RaggedLayer:
    """Layer `index`, of the tensors that `find` gives by name.

    Raises CorruptArchive if its offsets or positions are not what the manifest says.
    """
    manifest = archive.manifest
    names = ("keys", "values", "offsets", "positions")
    keys, values, offsets, positions = (find(f"layers.{index}.{name}") for name in names)
    if problem := _problem(offsets, positions, manifest, index):
        raise CorruptArchive(f"{archive.path} is damaged: layer {index} {problem}")
    layer = RaggedLayer(keys, values, offsets, positions, manifest.model.layers[index].window)
    return replace(layer, **_indexes(find, manifest, index))


def _view(archive: ArchiveFile, data: memoryview, name: str) -> Tensor:
    """A tensor of the archive as a view of its data section."""
    entry = archive.header.tensors[name]
    return _tensor(data, entry.begin, entry.dtype, entry.shape)


def _tensor(data: memoryview, begin: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
    kind, count = _DTYPES[dtype], torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=kind)
    found = torch.frombuffer(data, dtype=kind, count=count, offset=begin).view(shape)
    return found.clone() if found.data_ptr() % kind.itemsize else found  # a writer that does not align


def _indexes(find: Find, manifest: Manifest, index: int) -> dict[str, Any]:
    """The indexes that a layer has, as fields of a RaggedLayer."""
    found: dict[str, Any] = {}
    if manifest.model.layers[index].window is not None:
        return found
    kept = manifest.compression.kept[index]
    if manifest.planes is not None:
        planes, ranges = (find(f"layers.{index}.{name}") for name in ("planes", "plane_ranges"))
        found["planes"] = BitPlanes(planes, ranges, plane_bounds(kept))
    if manifest.pages is not None:
        extremes = torch.cat([find(f"layers.{index}.{name}") for name in ("page_max", "page_min")])
        grid = find(f"layers.{index}.page_grid") if manifest.pages.bits == 8 else None
        found["pages"] = PagedLayer(manifest.pages.size, extremes, page_bounds(kept, manifest.pages.size), grid)
    return found


def check_ids(token_ids: Tensor, archive: ArchiveFile) -> None:
    """Raise CorruptArchive if a token id is negative."""
    if bool((token_ids < 0).any()):
        raise CorruptArchive(f"{archive.path} is damaged: a token id is negative")


def _problem(offsets: Tensor, positions: Tensor, manifest: Manifest, index: int) -> str | None:
    """What is wrong with a layer's offsets or positions, or None."""
    lengths, prefix = manifest.head_lengths(index), manifest.prompt.prefix_tokens
    if offsets.diff().tolist() != lengths or int(offsets[0]) != 0:
        return "has offsets that are not the head lengths in the manifest"
    positions, starts = positions.long(), offsets[:-1][offsets.diff() > 0]
    if not positions.numel():
        return None
    if int(positions.min()) < 0 or int(positions.max()) >= manifest.logical_length:
        return "has a position outside the context"
    rising = torch.ones_like(positions, dtype=torch.bool)
    rising[1:] = positions[1:] > positions[:-1]
    rising[starts] = True
    if not bool(rising.all()):
        return "has positions out of order inside a head"
    if manifest.model.layers[index].window is not None:  # rising, as many as there are from the first: the last ones
        first = manifest.logical_length - lengths[0]
        return None if int(positions.min()) == first else "has positions that are not its last window"
    if prefix and bool((positions[starts + prefix - 1] != prefix - 1).any()):
        return "has a head without all positions of the prefix"
    return None
