"""A loaded language model: forward passes over whatever pair store it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvz.errors import ModelError, UsageError
from kvz.geometry import Geometry
from kvz.models.attention import ATTENTION_NAME, PairStore, WatchingStore, register_attention
from kvz.models.compiled_layers import check_compiles, compile_layers
from kvz.models.forward import network_inputs, step_logits
from kvz.models.fused_norm import can_fuse, fuse_norms
from kvz.models.identity import ModelIdentity, identify_model
from kvz.models.packed_linear import can_pack, pack_linears
from kvz.models.quiet import first_line, quiet_transformers
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
    """The weights of one model on one device, in one dtype."""

    identity: ModelIdentity
    network: nn.Module
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

    @torch.inference_mode()
    def logits(self, ids: Tensor, start: int, store: PairStore) -> Tensor:
        """Logits after the last of `ids [n]`, whose first has RoPE position `start`: `[vocabulary]` float32."""
        return self.last_logits(ids, start, store, 1)[0]

    @torch.inference_mode()
    def last_logits(self, ids: Tensor, start: int, store: PairStore, count: int) -> Tensor:
        """Logits after each of the last `count` of `ids [n]`: `[count, vocabulary]` float32."""
        out = self.network(**self._inputs(ids, start, store), logits_to_keep=count)
        logits: Tensor = out.logits[0].float()
        return logits

    @torch.inference_mode()
    def logits_at(self, ids: Tensor, positions: Tensor, store: PairStore, at: Tensor) -> Tensor:
        """Logits after the tokens `at [k]` of `ids [n]`, which have any `positions [n]`: `[k, vocabulary]` float32."""
        inputs = self._inputs(ids, 0, store) | {"position_ids": positions.to(self.device)[None]}
        logits: Tensor = self.network(**inputs, logits_to_keep=at.to(self.device)).logits[0].float()
        return logits

    @torch.inference_mode()
    def step(self, ids: Tensor, positions: Tensor, store: PairStore) -> Tensor:
        """Logits after one token each of B sequences, `ids, positions [B]`: `[B, vocabulary]` float32."""
        return step_logits(self.network, ids, positions, store, self.dtype, self.device)

    @torch.inference_mode()
    def fill(self, ids: Tensor, start: int, store: PairStore) -> None:
        """The same pass for what it does to the store alone: the vocabulary's head is not run."""
        body: nn.Module = self.network.base_model  # type: ignore[assignment]
        body(**self._inputs(ids, start, store))

    @torch.inference_mode()
    def fill_watched(self, ids: Tensor, start: int, store: WatchingStore) -> None:
        """`fill`, and the store is shown each layer's input before that layer attends."""

        def watch(layer: int) -> Callable[..., None]:
            def show(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                store.see(layer, args[0] if args else kwargs["hidden_states"])

            return show

        body: Any = self.network.base_model
        hooks = [m.register_forward_pre_hook(watch(i), with_kwargs=True) for i, m in enumerate(body.layers)]
        try:
            self.fill(ids, start, store)
        finally:
            for hook in hooks:
                hook.remove()

    def compile_steps(self) -> None:
        """From now on, let torch's compiler run passes of one token a sequence; the first one takes tens of seconds.

        Raises UsageError for a model that is not on a GPU.
        """
        check_compiles(self.device)
        compile_layers(self.network)

    def output_projection(self, layer: int) -> Tensor:
        """W_o of a layer, cut by query head: `[hidden, Hq, D]`.

        A norm between it and the residual stream is linear but for its division: its weights are multiplied in.
        """
        block = self._block(layer)
        weight: Tensor = block.self_attn.o_proj.weight.detach()
        if _normalises_output(block):
            weight = weight * (1 + block.post_attention_layernorm.weight.detach())[:, None]
        return weight.view(weight.shape[0], self.geometry.query_heads, -1)

    @torch.inference_mode()
    def attended_rms(self, layer: int, attended: Tensor) -> Tensor | None:
        """What a norm divides the output `attended [1,n,Hq,D]` by, `[1,n]` float32; None where there is no norm."""
        block = self._block(layer)
        if not _normalises_output(block):
            return None
        added: Tensor = block.self_attn.o_proj(attended.flatten(2)).float()
        divisor: Tensor = (added.square().mean(-1) + block.post_attention_layernorm.eps).sqrt()
        return divisor

    def _block(self, layer: int) -> Any:
        body: Any = self.network.base_model
        return body.layers[layer]

    def _inputs(self, ids: Tensor, start: int, store: PairStore) -> dict[str, Any]:
        return network_inputs(ids, start, store, self.dtype, self.device)


def _normalises_output(block: Any) -> bool:
    """Whether a layer norms the attention's output before adding it, as Gemma does: its MLP then has its own norms."""
    return hasattr(block, "pre_feedforward_layernorm")


def load_model(
    name: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    say: Callable[[str], None] = lambda message: None,
) -> LanguageModel:
    """Load a model by hub id, folder or `.gguf` file (None: the embedded default).

    `device` is a torch device or "auto" (CUDA if there is one); `dtype` is bfloat16, float16, float32 or "auto"
    (bfloat16 where the device is fast at it, else float32). Raises ModelError, UnsupportedModel or UsageError.
    """
    placement(device, dtype)  # wrong usage is told before anything is fetched
    return load_weights(identify_model(name, say), device, dtype)


def load_weights(identity: ModelIdentity, device: str = "auto", dtype: str = "auto") -> LanguageModel:
    """Load the weights of a model that has been identified; `device` and `dtype` as in `load_model`."""
    target, kind = placement(device, dtype)
    network = _network(identity.source, kind, target)
    return LanguageModel(identity, network, _end_ids(network, identity), kind, target)


def _network(source: ModelSource, dtype: torch.dtype, device: torch.device) -> nn.Module:
    from transformers import AutoModelForCausalLM

    register_attention()
    try:
        with quiet_transformers():
            network, report = AutoModelForCausalLM.from_pretrained(
                str(source.folder),
                output_loading_info=True,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                trust_remote_code=False,
            )
        placed = network.to(device).eval()
    except Exception as error:
        raise ModelError(f"cannot load the weights in {source.folder}: {first_line(error)}") from error
    if missing := sorted(report["missing_keys"]):  # transformers fills them with random numbers
        raise ModelError(
            f"the weights in {source.folder} lack {len(missing)} tensors that config.json calls for, "
            f"{missing[0]} first; copy or fetch the model again"
        )
    assert isinstance(placed, nn.Module)
    if can_pack(dtype, device):
        pack_linears(placed)
    if can_fuse(dtype, device):
        fuse_norms(placed)
    return placed


def _end_ids(network: Any, identity: ModelIdentity) -> frozenset[int]:
    """Every id that the model's files call an end of text."""
    found: set[int] = set()
    declared = (network.generation_config, identity.config)
    for value in (*(getattr(c, "eos_token_id", None) for c in declared), identity.tokenizer.end_id):
        found.update([] if value is None else value if isinstance(value, list) else [value])
    return frozenset(found)


def placement(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype that `load_model` takes these names for. Raises UsageError."""
    target = _device(device)
    return target, _dtype(dtype, target)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device '{name}' cannot be used: {first_line(error)}") from error
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if _fast_bfloat16(device) else torch.float32
    if name not in _DTYPES:
        raise UsageError(f"no dtype '{name}': give auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        probes = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
        return any(probe() for probe in probes if probe is not None)
    return False
