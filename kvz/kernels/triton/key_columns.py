"""What kernels that score keys share: a block of one KV head's keys against every query row of its group.

The block stays on the chip while blocks of query rows go past it, so keys are read from memory once a part of the rows
and nothing of size rows times keys is ever written. Results are partial over `parts` of the rows, `[parts,H,m]`: each
program writes its own, and they are put together in a fixed order, so that no result depends on the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.triton.launch import Launch, pointer

__all__ = [
    "LOG2E",
    "STRIDES",
    "ColumnTiles",
    "column_launch",
    "column_tiles",
    "dense_rows",
    "halves",
    "load_rows",
    "products",
    "products_of",
    "short",
    "strides_of",
]

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)

STRIDES = ("query_head", "query_group", "query_row", "key_head", "key_row")
"""The kernels' names of the strides of queries and keys."""

_PROGRAMS = 1024  # four to eight a multiprocessor: few enough to keep keys where they are, many enough to be even
_FEW_ROWS = 32


@dataclass(frozen=True)
class ColumnTiles:
    """`keys` of a block and `rows` that go past it at a time; head dims `padded` to a power of two; warps, stages."""

    keys: int
    rows: int
    padded: int
    warps: int
    stages: int

    def parts(self, heads: int, group: int, n: int, m: int) -> int:
        """How many programs share a block of keys: enough for a large GPU, and not more than there are row blocks.

        It depends on shapes only, so sums are the same on every GPU.
        """
        blocks = heads * -(-m // self.keys)
        return max(1, min(group * -(-n // self.rows), _PROGRAMS // blocks))


def column_tiles(dim: int, n: int) -> ColumnTiles:
    """Tiles for heads of `dim`, and `n` query rows a query head."""
    return ColumnTiles(128, _FEW_ROWS if n <= _FEW_ROWS else 64, triton.next_power_of_2(dim), 8, 2)


def column_launch(
    kernel: str,
    form: str,
    function: Any,
    tiles: ColumnTiles,
    dim: int,
    group: int,
    dtype: torch.dtype,
    others: Mapping[str, Any],
) -> Launch:
    """One launch of a kernel on columns; `others` are its constants beside those that all have, absent pointers too."""
    pointers = {"query": pointer(dtype), "key": pointer(dtype)}
    pointers |= {name: "*fp32" for name in ("lse", "weight", "partial") if name not in others}
    constants = {
        "GROUP": group,
        "D": dim,
        "PADDED": tiles.padded,
        "KEYS": tiles.keys,
        "ROWS": tiles.rows,
        "STAGES": tiles.stages,
        "PRODUCTS": products_of(dtype),
        **others,
    }
    scalars = {"n": "i32", "m": "i32", "factor": "fp32"}
    return Launch(
        f"{kernel} {form} D={dim} G={group} {short(dtype)}",
        function,
        {**pointers, **scalars, **dict.fromkeys(STRIDES, "i32")},
        constants,
        tiles.warps,
        tiles.stages,
        frozenset((*pointers, *STRIDES)),
    )


def products_of(dtype: torch.dtype) -> str:
    """How products are formed: "ieee" in float32, which is not rounded to TF32; 16-bit inputs as they are.

    Triton's interpreter takes bfloat16 for integers in a product, so there all inputs are widened; the results are the
    same.
    """
    return "ieee" if dtype == torch.float32 or triton.knobs.runtime.interpret else "tf32"


def short(dtype: torch.dtype) -> str:
    """A dtype's name in a launch's."""
    return str(dtype).removeprefix("torch.")


def dense_rows(tensor: Tensor) -> Tensor:
    """The tensor itself where its last dimension has stride 1, as any but a strange model's has; else a copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def strides_of(query: Tensor, key: Tensor) -> dict[str, int]:
    """Strides of `query [H,G,n,D]` and `key [H,m,D]`, in elements, by their names."""
    return dict(zip(STRIDES, (*query.stride()[:3], *key.stride()[:2]), strict=True))


@triton.jit
def load_rows(start, stride, count, ROWS: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr):
    """A tile `[ROWS,PADDED]` of rows `stride` apart; zero from row `count` and dimension D on."""
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED)
    mask = rows[:, None] < count
    if PADDED != D:
        mask = mask & (dims[None, :] < D)
    return tl.load(start + rows[:, None] * stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
def products(rows, columns, PRODUCTS: tl.constexpr):
    """`rows [I,D]` times `columns [D,J]`, `[I,J]` float32."""
    if PRODUCTS == "ieee":
        rows = rows.to(tl.float32)
        columns = columns.to(tl.float32)
    return tl.dot(rows, columns, input_precision=PRODUCTS)


@triton.jit
def halves(tile, KEYS: tl.constexpr, ROWS: tl.constexpr):
    """The left and the right half of a tile `[KEYS,ROWS]`."""
    return tl.split(tl.permute(tl.reshape(tile, [KEYS, 2, ROWS // 2]), (0, 2, 1)))
