"""A loaded language model: forward passes over whatever pair store it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvz.argument_types import PATH, TEXT, Kind, check_types
from kvz.errors import ModelError, UsageError
from kvz.geometry import Geometry
from kvz.models import checkpoint
from kvz.models.attention import PairStore, WatchingStore, attend_in, step_logits
from kvz.models.decoder import Attend, Decoder, computed_in
from kvz.models.identity import ModelIdentity, identify_model
from kvz.models.placement import check_placement
from kvz.models.quiet import first_line
from kvz.models.source import ModelSource
from kvz.models.tokenizer import Tokenizer

__all__ = ["LanguageModel", "load_model", "load_weights", "placement"]

_DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model on one device; `dtype` is that of its matrices and of the pairs it makes."""

    identity: ModelIdentity
    decoder: Decoder
    end_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device

    @property
    def source(self) -> ModelSource:
        """Where the model came from."""
        return self.identity.source

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.identity.tokenizer

    @property
    def geometry(self) -> Geometry:
        """Shape of the KV cache."""
        return self.identity.geometry

    @property
    def dtype_name(self) -> str:
        """The dtype as manifests have it: bfloat16, float16 or float32."""
        return str(self.dtype).removeprefix("torch.")

    def logits(self, ids: Tensor, start: int, store: PairStore) -> Tensor:
        """Logits after the last of `ids [n]`, whose first has RoPE position `start`: `[vocabulary]` float32."""
        hidden = self.decoder.forward(ids, _positions(ids, start), self._attend(store))
        return self.decoder.logits(hidden[-1:])[0]

    def step(self, ids: Tensor, positions: Tensor, store: PairStore) -> Tensor:
        """Logits after one token each of B sequences, `ids, positions [B]`: `[B, vocabulary]` float32."""
        return step_logits(self.decoder, self.dtype, ids, positions, store)

    def fill(self, ids: Tensor, start: int, store: PairStore) -> None:
        """The same pass for what it does to the store alone: the vocabulary's head is not run."""
        self.decoder.fill(ids, _positions(ids, start), self._attend(store))

    def fill_watched(self, ids: Tensor, start: int, store: WatchingStore) -> None:
        """`fill`, and the store is shown each layer's input before that layer attends."""

        def watch(layer: int, hidden: Tensor) -> None:
            store.see(layer, hidden[None])

        self.decoder.fill(ids, _positions(ids, start), self._attend(store), watch)

    def output_projection(self, layer: int) -> Tensor:
        """W_o of a layer, cut by query head: `[hidden, Hq, D]`.

        A norm between it and the residual stream is linear but for its division: its weights are multiplied in.
        """
        block = self.decoder.weights.blocks[layer]
        weight = block.output
        if block.attention_post_norm is not None:
            weight = weight * block.attention_post_norm[:, None]
        return weight.view(weight.shape[0], self.geometry.query_heads, -1)

    def attended_rms(self, layer: int, attended: Tensor) -> Tensor | None:
        """What a norm divides the output `attended [1,n,Hq,D]` by, `[1,n]` float32; None where there is no norm."""
        rms = self.decoder.attended_rms(layer, attended[0].to(self.decoder.dtype))
        return None if rms is None else rms[None]

    def _attend(self, store: PairStore) -> Attend:
        return attend_in(store, self.decoder.architecture.scale, self.dtype, 1)


def load_model(
    name: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    say: Callable[[str], None] = lambda message: None,
) -> LanguageModel:
    """Load a model by hub id, folder or `.gguf` file (None: the embedded default).

    `device` is a torch device or "auto" (CUDA if there is one); `dtype`, that of weights and pairs, is bfloat16
    ("auto"), float16 or float32. Raises ModelError, UnsupportedModel or UsageError.
    """
    check_types(name=(name, PATH | None), say=(say, Kind((Callable,), "a function")))  # type: ignore[arg-type]
    placement(device, dtype)  # wrong usage is told before anything is fetched
    return load_weights(identify_model(name, say), device, dtype)


def load_weights(identity: ModelIdentity, device: str = "auto", dtype: str = "auto") -> LanguageModel:
    """Load the weights of a model that has been identified; `device` and `dtype` as in `load_model`."""
    target, kind = placement(device, dtype)
    weights = checkpoint.load_weights(identity.source.folder, identity.facts, kind, target)
    decoder = Decoder(identity.facts, weights, computed_in(kind, target))
    return LanguageModel(identity, decoder, _end_ids(identity), kind, target)


def _positions(ids: Tensor, start: int) -> Tensor:
    return torch.arange(start, start + ids.shape[0])


def _end_ids(identity: ModelIdentity) -> frozenset[int]:
    """Every id that the model's files call an end of text."""
    found: set[int] = set()
    path = identity.source.folder / "generation_config.json"
    try:
        generation = json.loads(path.read_text()) if path.is_file() else {}
        declared = generation.get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"cannot read {path}: {first_line(error)}; copy or fetch the model again") from error
    for value in (declared, identity.config.eos_token_id, identity.tokenizer.end_id):
        found.update([] if value is None else value if isinstance(value, list) else [value])
    return frozenset(found)


def placement(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype that `load_model` takes these names for. Raises UsageError."""
    check_types(device=(device, Kind((str, torch.device), "a device's name")), dtype=(dtype, TEXT))
    check_placement(str(device), dtype)
    target = _device(device)
    return target, _DTYPES["bfloat16" if dtype == "auto" else dtype]


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device '{name}' cannot be used: {first_line(error)}") from error
    return device
