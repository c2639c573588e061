"""Dense attention that also returns each row's log-sum-exp.

The fused kernels are torch's own flash attention for CPU and CUDA; `plain_attention` is the same in a few lines of
torch, used on every other device and dtype and as the reference in the tests.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["attention", "grouped_attention", "plain_attention"]

Kernel = Callable[[Tensor, Tensor, Tensor, float, bool, Tensor | None], tuple[Tensor, Tensor]]

_HALF = (torch.float16, torch.bfloat16)
_BLOCK_BYTES = 64 << 20


def attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool = False, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention of `query [B,M,R,D]` over `key, value [B,M,N,D]`, M heads of a batch of B.

    `causal` lets row i see keys 0..i and needs R == N. Strides may be zero (an expanded head is not copied) except in
    the last dimension. `bias [B,M,1,N]` is added to the scores. Returns the output `[B,M,R,D]` in the query's dtype and
    the natural log-sum-exp of the scaled scores, `[B,M,R]` float32; zero and -inf where there are no keys.
    """
    kernel = _kernel_for(query, bias) if key.shape[2] else plain_attention
    return kernel(query, key, value, scale, causal, bias)


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention of GQA groups, `query [H,G,n,D]` over KV heads `key, value [H,N,D]`; KV heads are never expanded.

    Returns the output `[H,G*n,D]` and the log-sum-exp `[H,G*n]`; row g*n+i is token i of query head g of the group.
    """
    heads, group, n, dim = query.shape
    if causal:
        out, lse = attention(
            query,
            key.unsqueeze(1).expand(heads, group, -1, dim),
            value.unsqueeze(1).expand(heads, group, -1, dim),
            scale,
            causal=True,
        )
        return out.reshape(heads, group * n, dim), lse.reshape(heads, group * n)
    out, lse = attention(query.reshape(1, heads, group * n, dim), key.unsqueeze(0), value.unsqueeze(0), scale)
    return out[0], lse[0]


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool = False, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`attention` written out, in float32 (float64 stays), over blocks of rows whose scores take at most 64 MB."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    keys, values = key.to(wide).transpose(-1, -2), value.to(wide)
    batch, heads, count, _ = key.shape
    if not count:
        return torch.zeros_like(query), torch.full(query.shape[:3], float("-inf"), device=query.device)
    block = max(1, _BLOCK_BYTES // (8 * batch * heads * count))
    outs, lses = [], []
    for start in range(0, query.shape[2], block):
        rows = query[:, :, start : start + block].to(wide)
        scores = (rows @ keys) * scale
        if bias is not None:
            scores = scores + bias
        if causal:
            i = torch.arange(start, start + rows.shape[2], device=query.device)
            j = torch.arange(count, device=query.device)
            scores = scores.masked_fill(j > i[:, None], float("-inf"))
        lses.append(torch.logsumexp(scores, -1))
        outs.append((torch.softmax(scores, -1) @ values).to(query.dtype))
    return torch.cat(outs, 2), torch.cat(lses, 2).float()


def _cpu_flash(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    mask = None if bias is None else bias.expand(*query.shape[:3], key.shape[2])
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def _cuda_flash(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    result = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, causal, return_debug_mask=False, scale=scale
    )
    return result[0], result[1]


def _kernel_for(query: Tensor, bias: Tensor | None) -> Kernel:
    if query.device.type == "cpu" and query.dtype in (*_HALF, torch.float32):
        return _cpu_flash
    if query.device.type == "cuda" and query.dtype in _HALF and bias is None and _cuda_flash_takes(query):
        return _cuda_flash
    return plain_attention


def _cuda_flash_takes(query: Tensor) -> bool:
    dim = query.shape[-1]
    return dim % 8 == 0 and dim <= 256 and torch.cuda.get_device_capability(query.device) >= (8, 0)
