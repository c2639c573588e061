"""Which layers a CPU's kernels can run for a few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvz.kernels.decode_step import compiles
from kvz.kernels.linear import FEW_ROWS
from kvz.models.block import TorchBlock

if TYPE_CHECKING:
    from kvz.kernels.cpu.block import BlockStep

__all__ = ["MOST_STEP_ROWS", "step_of"]

MOST_STEP_ROWS = FEW_ROWS
"""Rows of a pass: with more, matrix products of the BLAS are faster."""

_TENSORS = (
    "attention_norm", "qkv", "qkv_bias", "query_norm", "key_norm", "output", "output_bias", "attention_post_norm",
    "mlp_norm", "gate_up", "gate_up_bias", "down", "down_bias", "mlp_post_norm",
)  # fmt: skip


def step_of(block: TorchBlock) -> BlockStep | None:
    """The layer by the CPU's kernels; None where it has experts, an activation or norms that they do not know."""
    facts, weights = block.facts, block.weights
    if weights.experts is not None or facts.head_norm == "all" or not compiles(weights.qkv):
        return None
    from kvz.kernels.cpu.block import ACTIVATIONS, BlockStep

    if facts.activation not in ACTIVATIONS:
        return None
    return BlockStep.from_tensors(
        {name: getattr(weights, name) for name in _TENSORS},
        block.block.query_heads,
        block.block.head_dim,
        eps=facts.eps,
        residual_scale=facts.residual_scale,
        activation=ACTIVATIONS[facts.activation],
    )
