"""Everything that the format asks of an archive's tensors beyond what is checked when one is loaded."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kvz.cache.bit_planes import BitPlanes, plane_layer
from kvz.cache.pages import PagedLayer, page_layer
from kvz.cache.ragged import RaggedLayer
from kvz.errors import CorruptArchive
from kvz.format.reader import PADDING, ArchiveFile, unchanged
from kvz.format.tensors import check_ids, layer_of, read_tensor

__all__ = ["check_tensors"]

_ROUNDING = 1e-5  # of what a channel spans: a bound on a grid may be computed in more than one way


def check_tensors(archive: ArchiveFile, vocabulary: int | None = None) -> None:
    """Check the content of every tensor, a layer at a time; token ids must be less than `vocabulary`, if it is given.

    Raises CorruptArchive, or ArchiveError if the file cannot be read or is changed meanwhile.
    """
    manifest = archive.manifest
    with unchanged(archive.file):
        if manifest.source.text_included:
            _check_ids(read_tensor(archive, "token_ids"), archive, vocabulary)
        for name in filter(PADDING.fullmatch, archive.header.tensors):
            if bool(read_tensor(archive, name).any()):
                raise CorruptArchive(f"{archive.path} is damaged: '{name[:60]}' is padding, and not of zeros")
        for index in range(len(manifest.model.layers)):
            layer = layer_of(lambda name: read_tensor(archive, name), archive, index)
            if problem := _index_problem(layer, manifest.prompt.prefix_tokens):
                raise CorruptArchive(f"{archive.path} is damaged: layer {index} has {problem}")


def _check_ids(token_ids: Tensor, archive: ArchiveFile, vocabulary: int | None) -> None:
    check_ids(token_ids, archive)
    if vocabulary is not None and int(token_ids.max()) >= vocabulary:
        raise CorruptArchive(f"{archive.path} is damaged: it has token ids that its model does not know")


def _index_problem(layer: RaggedLayer, prefix: int) -> str | None:
    """What is wrong with a layer's indexes, or None."""
    if layer.planes is not None and (problem := _planes_problem(layer, layer.planes, prefix)):
        return problem
    return _pages_problem(layer, layer.pages, prefix) if layer.pages is not None else None


def _planes_problem(layer: RaggedLayer, stored: BitPlanes, prefix: int) -> str | None:
    made = plane_layer(layer, prefix, stored.bits)
    if not torch.allclose(stored.ranges, made.ranges, rtol=_ROUNDING, atol=0, equal_nan=True):
        return "plane ranges that are not those of its keys"
    for head, (first, last) in enumerate(pairwise(layer.bounds)):
        ours, theirs = _cells(made, head), _cells(stored, head)
        count = last - first - prefix
        if bool(theirs[:, count:].any()):
            return "bits behind the last pair of its bit planes"
        finite = made.ranges[head].isfinite()
        if bool(((ours - theirs).abs() > 1)[finite].any()):  # by one: another rounding of the same quotient
            return "bit planes that are not those of its keys"
    return None


def _cells(planes: BitPlanes, head: int) -> Tensor:
    """The cell of each pair of a head in each channel, `[D, 8 bytes]`."""
    bits = planes.rows(head, torch.arange(len(planes.planes))).view(planes.bits, -1, 8 * _width(planes, head))
    weights = torch.tensor([2.0 ** (planes.bits - 1 - b) for b in range(planes.bits)])
    return (bits * weights[:, None, None]).sum(0)


def _width(planes: BitPlanes, head: int) -> int:
    return planes.bounds[head + 1] - planes.bounds[head]


def _pages_problem(layer: RaggedLayer, stored: PagedLayer, prefix: int) -> str | None:
    made = page_layer(layer, prefix, stored.size)
    for head in range(layer.heads):
        (most, least), (high, low) = made.head(head), stored.head(head)
        slack = (most - least).abs().amax(1, keepdim=True) * _ROUNDING if stored.grid is not None else 0
        finite = most.isfinite() & least.isfinite()
        if not bool(((high >= most - slack) & (low <= least + slack))[finite].all()):
            return "page bounds that its keys exceed"
        if stored.grid is None and bool(((high != most) | (low != least))[finite].any()):
            return "page bounds that are not its largest and smallest keys"
    return None
