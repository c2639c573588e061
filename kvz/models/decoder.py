"""The one forward pass: tokens of any number of sequences, laid end to end, through the layers of a model.

What the tokens attend is none of its business: it hands the queries, keys and values of a layer to `attend` and takes
what comes back. It keeps no state between calls and changes nothing, so threads may share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kvz.kernels.linear import linear
from kvz.models.architecture import Architecture
from kvz.models.block import BlockForward, TorchBlock, rms_norm
from kvz.models.block_step import MOST_STEP_ROWS, step_of
from kvz.models.checkpoint import DecoderWeights

__all__ = ["Attend", "Decoder", "Watch", "computed_in"]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`attend(layer, query [n,Hq,D], key [n,H,D], value [n,H,D]) -> [n,Hq,D]`: the tokens' attention, their own pairs
included; scores are multiplied by `Architecture.scale`."""

Watch = Callable[[int, Tensor], None]
"""`watch(layer, hidden [n,hidden])` is shown what enters each layer, before its first norm."""


def computed_in(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of hidden states under weights of `dtype`: float32 on a CPU, where narrower ones are not faster."""
    return torch.float32 if device.type == "cpu" else dtype


@dataclass(frozen=True, eq=False)
class Decoder:
    """A model's weights and its forward pass. Hidden states are `dtype`: float32 on a CPU, the weights' on a GPU."""

    architecture: Architecture
    weights: DecoderWeights
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.weights.embedding.device

    @torch.inference_mode()
    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, watch: Watch | None = None) -> Tensor:
        """Hidden states `[n,hidden]` after the last norm, of tokens `ids [n]` at RoPE `positions [n]`."""
        hidden = self._run(ids, positions, attend, watch)
        return rms_norm(hidden, self.weights.norm, self.architecture.eps)

    @torch.inference_mode()
    def fill(self, ids: Tensor, positions: Tensor, attend: Attend, watch: Watch | None = None) -> None:
        """The same pass for what `attend` and `watch` make of it alone."""
        self._run(ids, positions, attend, watch)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[n,vocabulary]` float32 for hidden states `[n,hidden]`."""
        logits = linear(hidden, self.weights.head).float()
        divisor = self.architecture.logit_divisor
        return logits if divisor == 1 else logits.div_(divisor)

    @torch.inference_mode()
    def attended_rms(self, layer: int, attended: Tensor) -> Tensor | None:
        """What the norm after a layer's attention divides the output `attended [n,Hq,D]` by: `[n]` float32.

        None where there is no such norm.
        """
        if not self.architecture.post_norm:
            return None
        added = self._blocks[layer].output(attended).float()
        return (added.square().mean(-1) + self.architecture.eps).sqrt()

    def _run(self, ids: Tensor, positions: Tensor, attend: Attend, watch: Watch | None) -> Tensor:
        positions = positions.to(self.device)
        tables = {name: rotary.tables(positions, self.dtype) for name, rotary in self.weights.rotaries.items()}
        hidden = self._embedded(ids)
        blocks: Sequence[BlockForward] = self._blocks if ids.shape[0] > MOST_STEP_ROWS else self._steps
        for layer, (facts, block) in enumerate(zip(self.architecture.blocks, blocks, strict=True)):
            if watch is not None:
                watch(layer, hidden)
            turn = None if facts.rotary is None else tables[facts.rotary]
            hidden = block.add(hidden, attend(layer, *block.heads(hidden, turn)).to(self.dtype))
        return hidden

    def _embedded(self, ids: Tensor) -> Tensor:
        """The scaled embeddings of `ids [n]`. The scale is of the weights' dtype, as Gemma was trained."""
        table, scale = self.weights.embedding, self.architecture.embedding_scale
        hidden = table[ids.to(self.device)].to(self.dtype)
        return hidden if scale == 1 else hidden * torch.tensor(scale, dtype=table.dtype).to(self.dtype)

    @cached_property
    def _blocks(self) -> tuple[TorchBlock, ...]:
        facts = self.architecture
        return tuple(TorchBlock(facts, *both) for both in zip(facts.blocks, self.weights.blocks, strict=True))

    @cached_property
    def _steps(self) -> tuple[BlockForward, ...]:
        """The layers as a few rows go through them: by a CPU's kernels, where there are some for the family."""
        return tuple(step_of(block) or block for block in self._blocks)
