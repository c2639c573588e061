"""One layer of a decode step on a CPU, but for its attention: two launches, each of which reads its weights once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvz.kernels.cpu.compile import compiled, part
from kvz.kernels.cpu.element import as_array, exp
from kvz.kernels.cpu.gemv import product

__all__ = ["ACTIVATIONS", "BlockStep"]

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
"""The activations that there is code for."""

_F = np.float32
_ROWS = 8  # of a matrix, that a thread takes at a time
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class BlockStep:
    """Weights of a layer as arrays, empty where it lacks a norm or bias; matrices `[out,in]` of any float dtype."""

    attention_norm: Array
    qkv: Array
    qkv_bias: Array
    query_norm: Array
    key_norm: Array
    output: Array
    output_bias: Array
    attention_post_norm: Array
    mlp_norm: Array
    gate_up: Array
    gate_up_bias: Array
    down: Array
    down_bias: Array
    mlp_post_norm: Array
    query_heads: int
    head_dim: int
    eps: float
    residual_scale: float
    activation: int

    @classmethod
    def from_tensors(
        cls, tensors: dict[str, Tensor | None], query_heads: int, head_dim: int, **facts: float
    ) -> BlockStep:
        """`tensors` by the names above, None for what the layer lacks; `facts` are eps, residual_scale, activation."""
        none = torch.empty(0)
        arrays: dict[str, Any] = {name: as_array(none if t is None else t) for name, t in tensors.items()}
        return cls(**arrays, query_heads=query_heads, head_dim=head_dim, **facts)  # type: ignore[arg-type]

    def heads(self, hidden: Tensor, tables: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[n,Hq,D]`, keys and values `[n,H,D]` of `hidden [n,hidden]`, rotated by `tables [n,1,R/2]`."""
        n, dim = hidden.shape[0], self.head_dim
        joint = torch.empty(n, len(self.qkv))
        cos, sin = (torch.empty(n, 0), torch.empty(n, 0)) if tables is None else (t.flatten(1) for t in tables)
        _project(
            hidden.numpy(), self.attention_norm, self.qkv, self.qkv_bias, self.query_norm, self.key_norm,
            cos.numpy(), sin.numpy(), self.query_heads, _F(self.eps), joint.numpy().reshape(n, -1, dim),
        )  # fmt: skip
        heads = joint.view(n, -1, dim)
        pairs = (heads.shape[1] - self.query_heads) // 2
        query, key, value = heads.split((self.query_heads, pairs, pairs), 1)
        return query, key, value

    def add(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output `[n,hidden]` for its input and its attention `[n,Hq,D]`."""
        out = torch.empty_like(hidden)
        _combine(
            hidden.numpy(), attended.reshape(len(hidden), -1).contiguous().numpy(), self.output, self.output_bias,
            self.attention_post_norm, self.mlp_norm, self.gate_up, self.gate_up_bias, self.down, self.down_bias,
            self.mlp_post_norm, _F(self.eps), _F(self.residual_scale), self.activation, out.numpy(),
        )  # fmt: skip
        return out


@compiled
def _project(
    hidden: Any, norm: Any, qkv: Any, bias: Any, query_norm: Any, key_norm: Any,
    cos: Any, sin: Any, query_heads: Any, eps: Any, out: Any,
) -> None:  # fmt: skip
    rows = np.empty_like(hidden)
    _norm_rows(hidden, norm, eps, rows)
    n, heads, dim = out.shape
    joint = out.reshape(n, heads * dim)
    rotated = (heads - query_heads) // 2 + query_heads
    for head in numba.prange(heads):
        product(rows, qkv, head * dim, head * dim + dim, joint)
        for r in range(n):
            one = out[r, head]
            if len(bias):
                for d in range(dim):
                    one[d] += bias[head * dim + d]
            if head < rotated:
                _norm_row(one, query_norm if head < query_heads else key_norm, eps, one)
                _rotate(one, cos[r], sin[r])


@compiled
def _combine(
    hidden: Any, attended: Any, output: Any, output_bias: Any, post_norm: Any, mlp_norm: Any, gate_up: Any,
    gate_up_bias: Any, down: Any, down_bias: Any, mlp_post_norm: Any, eps: Any, scale: Any, activation: Any, out: Any,
) -> None:  # fmt: skip
    n, size = hidden.shape
    inner = len(gate_up) // 2
    added, rows = np.empty_like(hidden), np.empty_like(hidden)
    joint = np.empty((n, 2 * inner), np.float32)
    gated = np.empty((n, inner), np.float32)
    for block in numba.prange((size + _ROWS - 1) // _ROWS):
        product(attended, output, block * _ROWS, min(size, block * _ROWS + _ROWS), added)
    _add_rows(hidden, added, output_bias, post_norm, eps, scale, out)
    _norm_rows(out, mlp_norm, eps, rows)
    for block in numba.prange((inner + _ROWS - 1) // _ROWS):
        first, last = block * _ROWS, min(inner, block * _ROWS + _ROWS)
        product(rows, gate_up, first, last, joint)
        product(rows, gate_up, inner + first, inner + last, joint)
        for r in range(n):
            if len(gate_up_bias):
                for i in range(first, last):
                    joint[r, i] += gate_up_bias[i]
                    joint[r, inner + i] += gate_up_bias[inner + i]
            _gate(joint[r, first:last], joint[r, inner + first : inner + last], activation, gated[r, first:last])
    for block in numba.prange((size + _ROWS - 1) // _ROWS):
        product(gated, down, block * _ROWS, min(size, block * _ROWS + _ROWS), added)
    _add_rows(out, added, down_bias, mlp_post_norm, eps, scale, out)


@part
def _norm_row(row: Any, weight: Any, eps: Any, out: Any) -> None:
    """RMS norm of a row; the row as it is if the weight is empty."""
    if len(weight):
        total = _F(0)
        for d in range(len(row)):
            total += row[d] * row[d]
        inverse = _F(1) / np.sqrt(total / _F(len(row)) + eps)
        for d in range(len(row)):
            out[d] = row[d] * inverse * weight[d]
    else:
        for d in range(len(row)):
            out[d] = row[d]


@part
def _norm_rows(rows: Any, weight: Any, eps: Any, out: Any) -> None:
    for r in range(len(rows)):
        _norm_row(rows[r], weight, eps, out[r])


@part
def _rotate(head: Any, cos: Any, sin: Any) -> None:
    half = len(cos)
    for d in range(half):
        first, second = head[d], head[half + d]
        head[d] = first * cos[d] - second * sin[d]
        head[half + d] = second * cos[d] + first * sin[d]


@part
def _add_rows(hidden: Any, added: Any, bias: Any, norm: Any, eps: Any, scale: Any, out: Any) -> None:
    """The residual stream with what a part of the layer adds to it."""
    for r in range(len(hidden)):
        for d in range(len(bias)):
            added[r, d] += bias[d]
        _norm_row(added[r], norm, eps, added[r])
        for d in range(hidden.shape[1]):
            out[r, d] = hidden[r, d] + added[r, d] * scale


@part
def _gate(gate: Any, up: Any, activation: Any, out: Any) -> None:
    if activation == 0:
        for i in range(len(out)):
            x = gate[i]
            small = exp(-abs(x))
            out[i] = up[i] * x * (_F(1) if x >= 0 else small) / (_F(1) + small)
    else:
        for i in range(len(out)):
            x = gate[i]
            inner = _F(0.7978845608) * (x + _F(0.044715) * x * x * x)
            small = exp(_F(-2) * abs(inner))
            tanh = (_F(1) - small) / (_F(1) + small)
            out[i] = up[i] * _F(0.5) * x * (_F(1) + (tanh if inner >= 0 else -tanh))
