"""The selection index of an archive: what sparse decoding looks at to choose pairs, made once and stored with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from kvz.cache.bit_planes import plane_layer
from kvz.cache.index_plan import IndexPlan
from kvz.cache.pages import rounded_outward
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.kernels.page_bounds import page_bounds

__all__ = ["index_tensors", "with_index"]


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
