"""A whole decode step - model, attention, sampling - as one CUDA graph; on other devices it runs as it is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.config import Sampling
from kvz.decode.sampling import choose_rows
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
        self,
        model: Stepping,
        cache: RaggedCache,
        reader: StepReader,
        state: StepState,
        sampling: Sampling,
        late: int | None = None,
    ) -> None:
        """On a GPU the step is recorded here, which runs it a few times: before any question is in the state.

        Tokens arrive `late` steps later, `LATE` at most: by default `LATE` on a GPU, at once elsewhere.
        """
        self.state = state
        self._model = model
        self._store = StepStore(cache, state, reader)
        self._sampling = sampling
        self._sent: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._on_gpu = model.device.type == "cuda"
        self._late = late if late is not None else LATE if self._on_gpu else 0
        self._host = [torch.zeros(state.batch, dtype=torch.int64, pin_memory=self._on_gpu) for _ in range(LATE + 1)]
        self._count = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        if self._on_gpu:
            with torch.cuda.device(model.device):
                self._graph = self._recorded()

    def begin(
        self, ids: Sequence[int], lengths: Sequence[int], start: int, seeds: Sequence[int], numbers: Sequence[int]
    ) -> None:
        """Go on after the answers' last tokens: see `StepState.begin`."""
        self._sent.clear()
        self.state.begin(ids, lengths, start, seeds, numbers)

    def step(self) -> list[int] | None:
        """One step. Returns the tokens `[B]` of as many steps before as they are late; None at first.

        NOT_A_NUMBER stands for a token whose logits were NaN.
        """
        self._launch()
        self._send()
        return self._arrived() if len(self._sent) > self._late else None

    def step_now(self) -> list[int]:
        """One step, and its tokens `[B]` as soon as they are there: for those who have to look at each."""
        self._launch()
        return [int(i) for i in self.state.chosen.tolist()]

    def oldest(self) -> list[int]:
        """The tokens that have been on their way for longest; there must be some."""
        return self._arrived()

    @torch.inference_mode()
    def run_eagerly(self) -> None:
        """What a step does, launch by launch."""
        state = self.state
        state.advance(choose_rows(self.logits(), self._sampling, state.seeds, state.numbers))

    @torch.inference_mode()
    def logits(self) -> Tensor:
        """Logits of the tokens that are fed next, `[B,vocabulary]` float32. Their pairs are written into the tails, but
        nothing is chosen or counted: the next step writes them again."""
        return self._model.step(self.state.ids, self.state.positions, self._store)

    @torch.inference_mode()  # as recording is: a generator's own tensors are filled in at every replay
    def _launch(self) -> None:
        if self._graph is None:
            self.run_eagerly()
        else:
            with torch.cuda.device(self._model.device):
                self._graph.replay()

    @torch.inference_mode()
    def _recorded(self) -> torch.cuda.CUDAGraph:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self.run_eagerly()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.run_eagerly()
        return graph

    def _send(self) -> None:
        """Start the new tokens' way to the host."""
        room = self._host[self._count % len(self._host)]
        self._count += 1
        room.copy_(self.state.chosen, non_blocking=self._on_gpu)
        event = None
        if self._on_gpu:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._model.device))
        self._sent.append((room, event))

    def _arrived(self) -> list[int]:
        room, event = self._sent.popleft()
        if event is not None:
            event.synchronize()
        return [int(i) for i in room.tolist()]
