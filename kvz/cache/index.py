"""The selection index of an archive: what sparse decoding looks at to choose pairs, made once and stored with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from kvz.cache.bit_planes import BITS, plane_layer
from kvz.cache.pages import PAGE, rounded_outward
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.errors import UsageError
from kvz.kernels.page_bounds import page_bounds

__all__ = ["NO_INDEX", "PLANES", "IndexPlan", "check_page_size", "index_tensors", "make_index_plan", "with_index"]

_KINDS = ("planes", "pages", "none")
_MOST_TOKENS = 4096  # of a page: more would choose among next to nothing
_PAGE_BITS = (16, 8)


@dataclass(frozen=True)
class IndexPlan:
    """Which kinds of index an archive gets: `planes` bit planes a dimension (0: none), pages of `page_size` (0: none).

    `page_bits` 16 stores page bounds in the pairs' own dtype, 8 in a byte each, rounded outward.
    """

    planes: int = BITS
    page_size: int = 0
    page_bits: int = 16


PLANES = IndexPlan()
NO_INDEX = IndexPlan(planes=0)


def make_index_plan(
    index: str | None = None, page_size: str | int | None = None, page_bits: int | None = None
) -> IndexPlan:
    """The plan a user asks for: `index` names kinds, separated by commas; "none" is none, None is "planes".

    Raises UsageError for kinds that do not exist and page options without pages.
    """
    kinds = ["planes"] if index is None else [kind.strip() for kind in index.split(",")]
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        raise UsageError(f"no index '{unknown[0]}'; there are: {', '.join(_KINDS)}")
    if "none" in kinds and len(kinds) > 1:
        raise UsageError("index 'none' is none; leave the others out")
    if "pages" not in kinds and (page_size is not None or page_bits is not None):
        raise UsageError("page size and page bits are those of an index of pages; add --index pages")
    if page_bits not in (None, *_PAGE_BITS):
        raise UsageError(f"page bits {page_bits}: give 16 or 8")
    pages = check_page_size(page_size) or PAGE if "pages" in kinds else 0
    return IndexPlan(BITS if "planes" in kinds else 0, pages, page_bits or 16)


def check_page_size(given: str | int | None) -> int | None:
    """Tokens a page; None for "auto" and None. Raises UsageError."""
    if given is None or given == "auto":
        return None
    try:
        size = int(given)
    except ValueError:
        size = 0
    if not 1 <= size <= _MOST_TOKENS:
        raise UsageError(f"page size '{given}': give auto, or 1 to {_MOST_TOKENS} tokens")
    return size


def with_index(cache: RaggedCache, prefix: int, plan: IndexPlan) -> RaggedCache:
    """The same cache, its full layers with the index that `plan` asks for."""
    layers = (layer if layer.window is not None else _indexed(layer, prefix, plan) for layer in cache.layers)
    return replace(cache, layers=tuple(layers))


def _indexed(layer: RaggedLayer, prefix: int, plan: IndexPlan) -> RaggedLayer:
    planes = plane_layer(layer, prefix, plan.planes) if plan.planes else None
    pages = page_bounds(layer, prefix, plan.page_size) if plan.page_size else None
    if pages is not None and plan.page_bits == 8:
        pages = rounded_outward(pages)
    return replace(layer, planes=planes, pages=pages)


def index_tensors(layer: RaggedLayer) -> Iterator[tuple[str, Tensor]]:
    """What an archive stores of a layer's index, by name."""
    if layer.planes is not None:
        yield "planes", layer.planes.planes
        yield "plane_ranges", layer.planes.ranges
    if layer.pages is not None:
        maxima, minima = layer.pages.extremes.chunk(2)
        yield "page_max", maxima
        yield "page_min", minima
        if layer.pages.grid is not None:
            yield "page_grid", layer.pages.grid
