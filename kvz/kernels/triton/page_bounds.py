"""Bounds of pages in one launch for all heads of a layer: see `kvz.kernels.page_bounds`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.cache.pages import PagedLayer
from kvz.cache.pages import page_bounds as bounds_of_pages
from kvz.cache.ragged import RaggedLayer
from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["Configuration", "configuration", "fill_page_bounds", "launch_page_bounds", "launches"]


@dataclass(frozen=True)
class Configuration:
    """Pages a program, dimensions a program, warps and stages."""

    pages: int
    dims: int
    warps: int
    stages: int


def configuration() -> Configuration:
    """The same for all shapes: keys are read, and rows of extremes written, 128 bytes at a time."""
    return Configuration(pages=64, dims=64, warps=8, stages=1)


@triton.jit
def _page_bounds(
    keys,
    offsets,
    starts,
    extremes,
    prefix,
    pages,
    size,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGES: tl.constexpr,
):
    head = tl.program_id(1)
    start = tl.load(starts + head)
    count = tl.load(starts + head + 1) - start
    if tl.program_id(0) * PAGES < count:
        begin = tl.load(offsets + head) + prefix
        length = tl.load(offsets + head + 1) - begin
        page = tl.program_id(0) * PAGES + tl.arange(0, PAGES)
        d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
        token = page.to(tl.int64) * size
        at = (begin + token)[:, None] * D + d[None, :]
        held = (token < length)[:, None] & (d < D)[None, :]
        upper = tl.load(keys + at, mask=held, other=0.0).to(tl.float32)
        lower = upper
        for i in range(1, size):
            held = (token + i < length)[:, None] & (d < D)[None, :]
            key = tl.load(keys + at + i * D, mask=held, other=0.0).to(tl.float32)
            upper = tl.where(held, tl.maximum(upper, key, propagate_nan=tl.PropagateNan.ALL), upper)
            lower = tl.where(held, tl.minimum(lower, key, propagate_nan=tl.PropagateNan.ALL), lower)
        column = (start + page)[None, :]
        into = extremes + d[:, None].to(tl.int64) * pages + column
        below = extremes + (D + d)[:, None].to(tl.int64) * pages + column
        kept = (d < D)[:, None] & (page < count)[None, :]
        tl.store(into, tl.trans(upper.to(extremes.dtype.element_ty)), mask=kept)
        tl.store(below, tl.trans(lower.to(extremes.dtype.element_ty)), mask=kept)


def launch_page_bounds(layer: RaggedLayer, prefix: int, size: int) -> PagedLayer:
    """See `kvz.kernels.page_bounds.page_bounds`."""
    bounds = bounds_of_pages([last - first - prefix for first, last in pairwise(layer.bounds)], size)
    extremes = layer.keys.new_empty(2 * layer.keys.shape[1], bounds[-1])
    fill_page_bounds(layer.keys, layer.offsets, prefix, size, bounds, extremes)
    return PagedLayer(size, extremes, bounds)


def fill_page_bounds(
    keys: Tensor, offsets: Tensor, prefix: int, size: int, bounds: tuple[int, ...], extremes: Tensor
) -> None:
    """Write the bounds of `keys [sum,D]`, whose heads are at `offsets [H+1]`, into `extremes [2 D,W]`, W >= bounds[-1].

    Head h has pages bounds[h] to bounds[h+1].
    """
    dim = keys.shape[1]
    config = configuration()
    starts = torch.tensor(bounds, dtype=torch.int32, device=keys.device)
    most = max(last - first for first, last in pairwise(bounds))
    blocks = max(1, triton.cdiv(most, config.pages))
    _page_bounds[(blocks, len(bounds) - 1, triton.cdiv(dim, config.dims))](
        keys,
        offsets,
        starts,
        extremes,
        prefix,
        extremes.stride(0),
        size,
        D=dim,
        BLOCK_D=config.dims,
        PAGES=config.pages,
        num_warps=config.warps,
        num_stages=config.stages,
    )


def launches() -> Iterator[Launch]:
    """All head dimensions."""
    for dim in (64, 80, 96, 128, 256):
        for dtype in (torch.bfloat16, torch.float16) if dim == 128 else (torch.bfloat16,):
            config = configuration()
            arguments = {
                "keys": pointer(dtype),
                "offsets": pointer(torch.int64),
                "starts": pointer(torch.int32),
                "extremes": pointer(dtype),
                **dict.fromkeys(("prefix", "pages", "size"), "i32"),
            }
            constants = {"D": dim, "BLOCK_D": config.dims, "PAGES": config.pages}
            name = f"page_bounds d{dim} {dtype}".replace("torch.", "")
            aligned = frozenset({"keys", "offsets", "starts", "extremes"})
            yield Launch(name, _page_bounds, arguments, constants, config.warps, config.stages, aligned, products=False)
