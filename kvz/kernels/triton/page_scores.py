"""Scores of pages by Triton: rows are chosen, then read for all pages of a head, then softmax and mean: 3 launches.

See `kvz.kernels.page_scores` for what is computed. A program reads blocks of pages that begin at a multiple of 16, so
that a row is read 16 bytes at a time wherever a head begins; what belongs to a neighbour is read and not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.page_scores import PageIndex
from kvz.kernels.score_space import ALIGNED, ScoreSpace, padded_group
from kvz.kernels.triton.group_mean import launch_group_mean, store_logits, store_nothing
from kvz.kernels.triton.launch import Launch, pointer
from kvz.kernels.triton.products import add_product
from kvz.kernels.triton.query_rows import both_terms, launch_query_rows

__all__ = ["Configuration", "configuration", "launch_page_scores", "launches"]


@dataclass(frozen=True)
class Configuration:
    """Pages a program, rows at a time, warps and stages."""

    block: int
    rows: int
    warps: int
    stages: int


def configuration(dtype: torch.dtype) -> Configuration:
    """For stored extremes of a dtype: a few rows are all there are, so they are read at once, 16 bytes a thread."""
    return Configuration(block=128, rows=16 if dtype == torch.float32 else 32, warps=4, stages=1)


@triton.jit
def _page_logits(
    extremes,
    starts,
    dims,
    rows,
    weights,
    factors,
    biases,
    logits,
    peaks,
    sums,
    heads,
    width,
    pages,
    most,
    parts,
    G: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
):
    part = tl.program_id(0)
    head = tl.program_id(1)
    place = tl.program_id(2) * heads + head
    begin = tl.load(starts + head)
    end = tl.load(starts + head + 1)
    first = begin // ALIGN * ALIGN + part * BLOCK
    if first >= end:
        store_nothing(peaks, sums, place, part, parts, G, P)
    else:
        used = tl.load(dims + head)
        page = first + tl.arange(0, BLOCK)
        r = tl.arange(0, 2 * P)
        product = tl.zeros((2 * P, BLOCK), tl.float32)
        for d in range(0, used, ROWS):
            k = d + tl.arange(0, ROWS)
            row = tl.load(rows + place * width + k, mask=k < used, other=0).to(tl.int64)
            bound = tl.load(
                extremes + row[:, None] * pages + page[None, :],
                mask=(k < used)[:, None] & (page < pages)[None, :],
                other=0,
            )
            weight = tl.load(
                weights + (place * (2 * P) + r)[:, None] * width + k[None, :],
                mask=(r % P < G)[:, None] & (k < used)[None, :],
                other=0.0,
            )
            product = add_product(product, weight, bound.to(weight.dtype), WIDE)
        g = tl.arange(0, P)
        factor = tl.load(factors + place * P + g, mask=g < G, other=0.0)
        bias = tl.load(biases + place * P + g, mask=g < G, other=0.0)
        # of a head that is taken whole no row is read, and the product and the bias are zero
        values = both_terms(product, BLOCK, P) * factor[:, None] + bias[:, None]
        exists = (page >= begin) & (page < end)
        store_logits(values, page - begin, exists, logits, peaks, sums, place, part, parts, most, G, P)


def launch_page_scores(query: Tensor, index: PageIndex, scale: float, space: ScoreSpace) -> Tensor:
    """See `kvz.kernels.page_scores.page_scores`.

    The products are exact, and their sums float32, for a query of the extremes' own dtype; for codes the error of a
    logit is below 2^-20 of the sum of |weight| times 255.
    """
    space.check(query, index.most_dims, index.most)
    query = query.contiguous()
    batch, heads, group, _ = query.shape
    config = configuration(index.extremes.dtype)
    launch_query_rows(query, index.grid, index.dims, 0, scale, space)
    parts = triton.cdiv(index.most + ALIGNED - 1, config.block)
    _page_logits[(parts, heads, batch)](
        index.extremes,
        index.starts,
        index.dims,
        space.rows,
        space.weights,
        space.factors,
        space.biases,
        space.logits,
        space.peaks,
        space.sums,
        heads,
        space.rows.shape[2],
        index.extremes.shape[1],
        space.logits.shape[3],
        space.peaks.shape[3],
        G=group,
        P=padded_group(group),
        BLOCK=config.block,
        ROWS=config.rows,
        ALIGN=ALIGNED,
        WIDE=not query.is_cuda,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return launch_group_mean(space, index.counts, parts)


def launches() -> Iterator[Launch]:
    """Bounds of 16 bits, and codes, which are multiplied as float16."""
    for group in (1, 4, 8):
        for stored, products in ((torch.bfloat16,) * 2, (torch.float16,) * 2, (torch.uint8, torch.float16)):
            yield _launch(stored, products, group)


def _launch(stored: torch.dtype, products: torch.dtype, group: int) -> Launch:
    config = configuration(stored)
    arguments = {
        "extremes": pointer(stored),
        **dict.fromkeys(("starts", "dims", "rows"), pointer(torch.int32)),
        "weights": pointer(products),
        **dict.fromkeys(("factors", "biases", "logits", "peaks", "sums"), pointer(torch.float32)),
        **dict.fromkeys(("heads", "width", "pages", "most", "parts"), "i32"),
    }
    constants = {
        "G": group,
        "P": padded_group(group),
        "BLOCK": config.block,
        "ROWS": config.rows,
        "ALIGN": ALIGNED,
        "WIDE": False,
    }
    name = f"page_scores g{group} {stored}".replace("torch.", "")
    aligned = frozenset(arguments) - {"heads", "parts"}
    return Launch(name, _page_logits, arguments, constants, config.warps, config.stages, aligned)
