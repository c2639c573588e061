"""A loaded language model: forward passes over whatever pair store it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvz.errors import ModelError, UsageError
from kvz.models.attention import ATTENTION_NAME, PairStore, register_attention
from kvz.models.families import Geometry, geometry_of
from kvz.models.fingerprint import Fingerprints, fingerprints_of
from kvz.models.quiet import quiet_transformers
from kvz.models.source import ModelSource, find_model
from kvz.models.tokenizer import Tokenizer

__all__ = ["LanguageModel", "load_model"]

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


@dataclass(frozen=True)
class LanguageModel:
    """Weights, tokenizer, geometry and fingerprints of one model on one device."""

    source: ModelSource
    network: nn.Module
    tokenizer: Tokenizer
    geometry: Geometry
    fingerprints: Fingerprints
    architecture: str
    end_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device

    @property
    def vocabulary_size(self) -> int:
        """Ids the model can be fed: 0 to this, exclusive."""
        embedding = self.network.get_input_embeddings()  # type: ignore[operator]
        return int(embedding.weight.shape[0])

    @torch.inference_mode()
    def logits(self, ids: Tensor, start: int, store: PairStore) -> Tensor:
        """Logits after the last of `ids [n]`, whose first has RoPE position `start`: `[vocabulary]` float32."""
        out = self.network(**self._inputs(ids, start, store), logits_to_keep=1)
        logits: Tensor = out.logits[0, -1].float()
        return logits

    @torch.inference_mode()
    def fill(self, ids: Tensor, start: int, store: PairStore) -> None:
        """The same pass for what it does to the store alone: the vocabulary's head is not run."""
        body: nn.Module = self.network.base_model  # type: ignore[assignment]
        body(**self._inputs(ids, start, store))

    def _inputs(self, ids: Tensor, start: int, store: PairStore) -> dict[str, Any]:
        positions = torch.arange(start, start + ids.shape[0], device=self.device)
        return {
            "input_ids": ids.to(self.device)[None],
            "position_ids": positions[None],
            # A finished 4-D mask is passed on as it is: transformers then builds none, and the store needs none.
            "attention_mask": torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device),
            "use_cache": False,
            "pair_store": store,
        }


def load_model(
    name: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    say: Callable[[str], None] = lambda message: None,
) -> LanguageModel:
    """Load a model by hub id, folder or `.gguf` file (None: the embedded default).

    `device` is a torch device or "auto" (CUDA if there is one); `dtype` a name in DTYPES or "auto" (bfloat16 where the
    device is fast at it, else float32). Raises ModelError, UnsupportedModel or UsageError.
    """
    target = _device(device)
    kind = _dtype(dtype, target)
    source = find_model(name, say)
    config = _config(source)
    geometry = geometry_of(config)
    tokenizer = Tokenizer.load(source.folder)
    network = _network(source, kind).to(target).eval()
    return LanguageModel(
        source=source,
        network=network,
        tokenizer=tokenizer,
        geometry=geometry,
        fingerprints=fingerprints_of(config, source.folder, tokenizer),
        architecture=type(network).__name__,
        end_ids=_end_ids(network, config, tokenizer),
        dtype=kind,
        device=target,
    )


def _config(source: ModelSource) -> Any:
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(str(source.folder), local_files_only=True)
    except Exception as error:
        raise ModelError(f"cannot read {source.folder / 'config.json'}: {_first_line(error)}") from error


def _network(source: ModelSource, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    register_attention()
    try:
        with quiet_transformers():
            network = AutoModelForCausalLM.from_pretrained(
                str(source.folder), dtype=dtype, attn_implementation=ATTENTION_NAME, local_files_only=True
            )
    except Exception as error:
        raise ModelError(f"cannot load the weights in {source.folder}: {_first_line(error)}") from error
    assert isinstance(network, nn.Module)
    return network


def _end_ids(network: Any, config: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """Every id that the model's files call an end of text."""
    found: set[int] = set()
    for value in (network.generation_config.eos_token_id, getattr(config, "eos_token_id", None), tokenizer.end_id):
        found.update([] if value is None else value if isinstance(value, list) else [value])
    return frozenset(found)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device '{name}' cannot be used: {_first_line(error)}") from error
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if _fast_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise UsageError(f"no dtype '{name}': give auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        probes = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
        return any(probe() for probe in probes if probe is not None)
    return False


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
