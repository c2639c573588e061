"""An opened archive's tensors as a cache, checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvz.cache.bit_planes import BitPlanes, plane_bounds
from kvz.cache.pages import PagedLayer, page_bounds
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.errors import CorruptArchive
from kvz.format.manifest import Manifest
from kvz.format.reader import ArchiveFile

__all__ = ["read_cache"]


def read_cache(archive: ArchiveFile, device: torch.device) -> tuple[RaggedCache, Tensor | None]:
    """The cache and the token ids (`[prefix + S]` int32, None if left out) of an archive.

    On a CPU the tensors are views of the memory-mapped file. Raises CorruptArchive if offsets or positions are not what
    the manifest says.
    """
    manifest = archive.manifest
    try:
        with safe_open(str(archive.path), framework="pt", device="cpu") as file:
            if not archive.header.same_file(archive.path):
                raise CorruptArchive(f"{archive.path} was replaced while it was being read; try again")
            token_ids = file.get_tensor("token_ids") if manifest.source.text_included else None
            layers = []
            for index in range(len(manifest.model.layers)):
                names = ("keys", "values", "offsets", "positions")
                keys, values, offsets, positions = (file.get_tensor(f"layers.{index}.{name}") for name in names)
                layer = RaggedLayer(keys, values, offsets, positions, manifest.model.layers[index].window)
                layer = replace(layer, **_indexes(file, manifest, index))
                if problem := _problem(layer, manifest, index):
                    raise CorruptArchive(f"{archive.path} is damaged: layer {index} {problem}")
                layers.append(layer if device.type == "cpu" else layer.to(device))
    except (SafetensorError, OSError) as error:
        raise CorruptArchive(f"{archive.path} cannot be read: {error}") from error
    return RaggedCache(tuple(layers), manifest.logical_length), token_ids


def _indexes(file: Any, manifest: Manifest, index: int) -> dict[str, Any]:
    """The indexes that a layer has, as fields of a RaggedLayer."""
    found: dict[str, Any] = {}
    if manifest.model.layers[index].window is not None:
        return found
    kept = manifest.compression.kept[index]
    if manifest.planes is not None:
        planes, ranges = (file.get_tensor(f"layers.{index}.{name}") for name in ("planes", "plane_ranges"))
        found["planes"] = BitPlanes(planes, ranges, plane_bounds(kept))
    if manifest.pages is not None:
        extremes = torch.cat([file.get_tensor(f"layers.{index}.{name}") for name in ("page_max", "page_min")])
        grid = file.get_tensor(f"layers.{index}.page_grid") if manifest.pages.bits == 8 else None
        found["pages"] = PagedLayer(manifest.pages.size, extremes, page_bounds(kept, manifest.pages.size), grid)
    return found


def _problem(layer: RaggedLayer, manifest: Manifest, index: int) -> str | None:
    """What is wrong with a layer's offsets or positions, or None."""
    lengths = manifest.head_lengths(index)
    if layer.offsets.diff().tolist() != lengths or int(layer.offsets[0]) != 0:
        return "has offsets that are not the head lengths in the manifest"
    positions, starts = layer.positions.long(), layer.offsets[:-1][layer.offsets.diff() > 0]
    if not positions.numel():
        return None
    if int(positions.min()) < 0 or int(positions.max()) >= manifest.logical_length:
        return "has a position outside the context"
    rising = torch.ones_like(positions, dtype=torch.bool)
    rising[1:] = positions[1:] > positions[:-1]
    rising[starts] = True
    if not bool(rising.all()):
        return "has positions out of order inside a head"
    first = manifest.logical_length - lengths[0]  # rising, and as many as there are from here: the last ones
    if layer.window is not None and int(positions.min()) != first:
        return "has positions that are not its last window"
    return None
