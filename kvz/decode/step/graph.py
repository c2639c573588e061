"""A whole decode step - model, attention, sampling - as one CUDA graph; on other devices it runs as it is written."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.decode.sampling import DeviceSampler
from kvz.decode.step.reader import StepReader
from kvz.decode.step.state import StepState
from kvz.decode.step.store import StepStore
from kvz.models.attention import PairStore

__all__ = ["LATE", "WARM_UPS", "StepGraph", "Stepping"]

LATE = 4
"""Steps that tokens may be on their way to the host: an end token is seen that much later, and no step waits for it."""

WARM_UPS = 2
"""Steps before a graph is recorded: kernels are compiled, and libraries choose theirs."""


class Stepping(Protocol):
    """What a graph needs of a model."""

    @property
    def device(self) -> torch.device:
        """Where it is."""
        ...

    def step(self, ids: Tensor, positions: Tensor, store: PairStore) -> Tensor:
        """Logits after one token each of B sequences, `ids, positions [B]`: `[B,vocabulary]` float32."""
        ...


class StepGraph:
    """Steps of B questions over one archive: each feeds the last tokens and chooses the next ones, on the device."""

    def __init__(
        self, model: Stepping, cache: RaggedCache, reader: StepReader, state: StepState, sampler: DeviceSampler
    ) -> None:
        self.state = state
        self._model = model
        self._store = StepStore(cache, state, reader)
        self._sampler = sampler
        self._graph: torch.cuda.CUDAGraph | None = None
        self._sent: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._late = LATE if model.device.type == "cuda" else 0
        self._host = [self._room() for _ in range(self._late + 1)]
        self._count = 0

    def step(self) -> list[int] | None:
        """One step. Returns the tokens `[B]` of `LATE` steps before on a GPU, of this one elsewhere; None at first."""
        if self._model.device.type == "cuda" and self._graph is None:
            self._capture()
        if self._graph is None:
            self.run_eagerly()
        else:
            self._graph.replay()
        self._send()
        return self._arrived() if len(self._sent) > self._late else None

    def rest(self) -> list[list[int]]:
        """The tokens that are still on their way, step by step."""
        return [self._arrived() for _ in range(len(self._sent))]

    @torch.inference_mode()
    def run_eagerly(self) -> None:
        """What a step does, launch by launch."""
        state = self.state
        logits = self._model.step(state.ids, state.positions, self._store)
        state.advance(self._sampler.choose(logits))

    @torch.inference_mode()
    def _capture(self) -> None:
        """Run a few steps beforehand, and record one. What they change in the state is put back."""
        state = self.state
        changing = (state.ids, state.positions, state.past, state.seen)
        before = [t.clone() for t in changing]
        noise = self._sampler.generator.get_state()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self.run_eagerly()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._sampler.generator)
        for tensor, value in zip(changing, before, strict=True):
            tensor.copy_(value)
        with torch.cuda.graph(graph):
            self.run_eagerly()
        self._sampler.generator.set_state(noise)
        self._graph = graph

    def _send(self) -> None:
        """Start the new tokens' way to the host."""
        room = self._host[self._count % len(self._host)]
        self._count += 1
        room.copy_(self.state.ids, non_blocking=True)
        event = None
        if self._late:
            event = torch.cuda.Event()
            event.record()
        self._sent.append((room, event))

    def _arrived(self) -> list[int]:
        room, event = self._sent.popleft()
        if event is not None:
            event.synchronize()
        return [int(i) for i in room.tolist()]

    def _room(self) -> Tensor:
        pinned = self._model.device.type == "cuda"
        return torch.zeros(self.state.batch, dtype=torch.int64, pin_memory=pinned)
