"""Bounds of pages (see kvz.cache.pages) of all heads of a layer, made where its keys are."""

from __future__ import annotations

import torch

from kvz.cache.index_plan import PAGE
from kvz.cache.pages import PagedLayer, page_layer
from kvz.cache.ragged import RaggedLayer
from kvz.kernels.device import takes_triton

__all__ = ["page_bounds", "pages_of", "plain_page_bounds"]


def pages_of(layer: RaggedLayer, prefix: int, size: int | None) -> PagedLayer:
    """A layer's pages: the stored ones if they are of that size (None: whatever it is), else made."""
    if layer.pages is not None and size in (None, layer.pages.size):
        return layer.pages
    return page_bounds(layer, prefix, size or PAGE)


def page_bounds(layer: RaggedLayer, prefix: int, size: int) -> PagedLayer:
    """The pages of a full layer whose heads begin with `prefix` tokens, in pages of `size` tokens.

    Done once for an archive. By Triton for CUDA tensors, by torch otherwise; the bounds are equal.
    """
    if takes_triton(layer.keys):
        from kvz.kernels.triton.page_bounds import launch_page_bounds

        with torch.cuda.device_of(layer.keys):
            return launch_page_bounds(layer, prefix, size)
    return plain_page_bounds(layer, prefix, size)


def plain_page_bounds(layer: RaggedLayer, prefix: int, size: int) -> PagedLayer:
    """The same in torch, head by head."""
    return page_layer(layer, prefix, size)
