"""RMS norms, a row a program: see `kvz.kernels.rms_norm`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvz.kernels.triton.launch import Launch, pointer

__all__ = ["Configuration", "configuration", "launch_rms_norm", "launches"]


@dataclass(frozen=True)
class Configuration:
    """Elements a program has room for, warps and stages."""

    block: int
    warps: int
    stages: int


def configuration(dim: int) -> Configuration:
    """A whole row, eight elements a thread and load: norms of heads are short, those of hidden states long."""
    block = max(32, triton.next_power_of_2(dim))
    return Configuration(block, min(16, max(1, block // 256)), stages=1)


@triton.jit
def _rms_norm(rows, weight, out, eps, D: tl.constexpr, BLOCK: tl.constexpr, CENTRED: tl.constexpr):
    d = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * D + d
    row = tl.load(rows + at, mask=d < D, other=0.0).to(tl.float32)
    row *= tl.rsqrt(tl.sum(row * row, 0) / D + eps)
    by = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    if CENTRED:
        row *= 1.0 + by
    else:
        row = row.to(out.dtype.element_ty).to(tl.float32) * by
    tl.store(out + at, row.to(out.dtype.element_ty), mask=d < D)


def launch_rms_norm(rows: Tensor, weight: Tensor, eps: float, centred: bool) -> Tensor:
    """See `kvz.kernels.rms_norm.rms_norm`; `rows` are contiguous."""
    dim = rows.shape[-1]
    config = configuration(dim)
    out = torch.empty_like(rows)
    if rows.numel():
        _rms_norm[(rows.numel() // dim,)](
            rows,
            weight,
            out,
            eps,
            D=dim,
            BLOCK=config.block,
            CENTRED=centred,
            num_warps=config.warps,
            num_stages=config.stages,
        )
    return out


def launches() -> Iterator[Launch]:
    """Norms of heads and of hidden states, of both kinds."""
    plain, centred_dims = (64, 128, 3584, 4096, 16384), (256, 640)
    for dim, centred in [*((d, False) for d in plain), *((d, True) for d in centred_dims)]:
        for dtype in (torch.bfloat16, torch.float16) if dim == 4096 else (torch.bfloat16,):
            config = configuration(dim)
            pointers = dict.fromkeys(("rows", "weight", "out"), pointer(dtype))
            yield Launch(
                f"rms_norm d{dim} {str(dtype).removeprefix('torch.')}{' centred' if centred else ''}",
                _rms_norm,
                {**pointers, "eps": "fp32"},
                {"D": dim, "BLOCK": config.block, "CENTRED": centred},
                config.warps,
                config.stages,
                frozenset(pointers),
                products=False,
                wide=dim >= 256,
            )
