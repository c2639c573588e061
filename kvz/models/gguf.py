"""GGUF files: dequantised once to bfloat16 safetensors in the cache folder, loaded from there ever after.

The conversion goes tensor by tensor, half a million values at a time. A tensor that the architecture calls for and the
file lacks is refused by name, and so is one that it has no place for.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from kvz.errors import ModelError
from kvz.models.architecture import Architecture
from kvz.models.cache_folder import build_once, cache_folder, is_complete
from kvz.models.checkpoint import shapes_of
from kvz.models.config_file import ModelConfig
from kvz.models.gguf_config import Metadata, config_of
from kvz.models.quiet import first_line, quiet_transformers

__all__ = ["convert_gguf", "converted_folder"]

_VERSION = b"2"  # what a conversion drops or keeps; 1 was without rope scalings, windows and head sizes
_PIECE = 1 << 19  # values dequantised at once: few enough for the processor's caches
_SECONDS = 5.0  # between lines about how far it is
_LARGE = 1 << 30  # bytes that take a second or more to read

_OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_INNER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_INNER_POST_NORMED = _INNER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True, eq=False)
class _Weight:
    """One tensor of the file and what is written of it: `rows` reorders its rows, `offset` is taken off its values."""

    name: str
    shape: tuple[int, ...]
    source: Any
    rows: np.ndarray | None
    offset: float


def converted_folder(gguf: Path, say: Callable[[str], None] = lambda message: None) -> Path:
    """Folder holding `gguf` as safetensors, converting it if that has not been done. Keyed by the file's content."""
    size = gguf.stat().st_size
    if size > _LARGE:
        say(f"reading {gguf.name} ({size / 1e9:.1f} GB)")
    digest = xxhash.xxh3_128()
    with gguf.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    older = cache_folder() / "gguf" / f"{gguf.stem}-{digest.hexdigest()}"
    digest.update(_VERSION)
    folder = cache_folder() / "gguf" / f"{gguf.stem}-{digest.hexdigest()}"
    if is_complete(folder):
        return folder
    build_once(folder, lambda partial: convert_gguf(gguf, partial, say), say)
    shutil.rmtree(older, ignore_errors=True)
    return folder


def convert_gguf(gguf: Path, folder: Path, say: Callable[[str], None] = lambda message: None) -> None:
    """Write the model and tokenizer in `gguf` to `folder` as bfloat16 safetensors; `say` is told how far it is.

    Raises ModelError if the file is not GGUF, not whole, or has or lacks what kvz cannot do with or without: by name.
    """
    reader = _reader(gguf)
    try:
        config, weights = _planned(reader, say)
        _save_tokenizer(gguf, folder)
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}, indent=2))
        say(f"converting {gguf.name} to bfloat16 ({sum(prod(w.shape) * 2 for w in weights) / 1e6:,.0f} MB, once)")
        with (folder / "model.safetensors").open("wb") as file:
            _write(weights, file, _percents(gguf.name, say))
    except ModelError as error:
        raise type(error)(f"cannot use {gguf}: {error}") from error


def _planned(reader: Any, say: Callable[[str], None]) -> tuple[dict[str, Any], list[_Weight]]:
    """The config and the tensors to write; everything is known to have its place before anything is written."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    metadata = _metadata(reader)
    ropes = {name: tensor.data if name.startswith("rope_f") else None for name, tensor in tensors.items()}
    config = config_of(metadata, ropes, say)
    return config, list(_weights(_facts(config), tensors))


def _reader(gguf: Path) -> Any:
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{gguf} is not a GGUF file (it does not begin with 'GGUF')")
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf)
    except Exception as error:  # whatever its parser trips over
        raise ModelError(f"cannot read {gguf}: {first_line(error)}; it is damaged or cut short") from error
    if reader.byte_order == "S":
        raise ModelError(f"{gguf} is in the byte order of another machine; kvz reads GGUF files in this machine's own")
    return reader


def _metadata(reader: Any) -> Metadata:
    """Raises ModelError for a file that holds no whole model."""
    bulky = ("tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
    values = {name: field.contents() for name, field in reader.fields.items() if name not in bulky}
    reader.fields.clear()  # hundreds of megabytes of them, for a large vocabulary
    if not isinstance(values.get("general.architecture"), str):
        raise ModelError("its metadata has no general.architecture; the file is damaged or not complete")
    if values.get("general.type", "model") != "model":
        raise ModelError(f"it holds no language model (general.type is '{values['general.type']}')")
    if (parts := values.get("split.count", 1)) > 1:
        raise ModelError(
            f"it is one of {parts} parts of a model (split.count); join them with llama-gguf-split --merge"
        )
    return Metadata(values["general.architecture"], values)


def _facts(config: Mapping[str, Any]) -> Architecture:
    return Architecture.from_config(ModelConfig.from_fields({k: v for k, v in config.items() if v is not None}))


def _weights(facts: Architecture, tensors: Mapping[str, Any]) -> Iterator[_Weight]:
    """Each tensor of the architecture with its source. Raises ModelError for one that either side lacks."""
    wanted = {_gguf_name(facts, name): (name, shape) for name, shape in shapes_of(facts).items()}
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise ModelError(f"it lacks {len(missing)} tensors of a {facts.family} model, {missing[0]} first")
    in_the_config = {"rope_freqs.weight"} if facts.family == "llama" else set()
    if extra := sorted(tensors.keys() - wanted.keys() - in_the_config):
        raise ModelError(
            f"it has {len(extra)} tensors that kvz does not know in a {facts.family} model, {extra[0]} first; "
            "answers would be wrong without them"
        )
    for own, (name, shape) in wanted.items():
        found = tuple(int(n) for n in reversed(tensors[own].shape))
        if found != shape:
            raise ModelError(f"its tensor {own} is {found} and its metadata makes it {shape}")
        offset = 1.0 if facts.centred and len(shape) == 1 and "norm" in name else 0.0
        full = name if name.startswith("lm_head") else f"model.{name}"
        yield _Weight(full, shape, tensors[own], _rows(facts, own, shape[0]), offset)


def _gguf_name(facts: Architecture, name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    _, layer, inner = stem.split(".", 2)
    return f"blk.{layer}.{(_INNER_POST_NORMED if facts.post_norm else _INNER)[inner]}.{kind}"


def _rows(facts: Architecture, name: str, count: int) -> np.ndarray | None:
    """Which row of the file each row is: llama.cpp interleaves the rotary halves of a Llama's queries and keys."""
    if facts.family != "llama" or not any(f".{part}." in name for part in ("attn_q", "attn_k")):
        return None
    dim = facts.blocks[0].head_dim
    rows: np.ndarray = np.arange(count).reshape(-1, dim // 2, 2).swapaxes(1, 2).reshape(-1)
    return rows


def _write(weights: list[_Weight], file: BinaryIO, tell: Callable[[float], None]) -> None:
    """Write a safetensors file, a piece of a tensor at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        begin, end = end, end + prod(weight.shape) * 2
        header[weight.name] = {"dtype": "BF16", "shape": weight.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    written = 0
    for weight in weights:
        for piece in _pieces(weight):
            file.write(piece.data)
            written += piece.nbytes
            tell(written / end)


def _pieces(weight: _Weight) -> Iterator[np.ndarray]:
    """The values in bfloat16, as 16-bit integers, some rows at a time."""
    from gguf.quants import dequantize

    tensor = weight.source
    step = max(1, _PIECE // prod(weight.shape[1:]))
    for start in range(0, weight.shape[0], step):
        rows = slice(start, start + step) if weight.rows is None else weight.rows[start : start + step]
        try:
            values = dequantize(tensor.data[rows], tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ModelError(f"its tensor {tensor.name} is of type {kind}, which kvz cannot read") from error
        if not np.isfinite(values).all():
            raise ModelError(f"its tensor {tensor.name} holds values that are no numbers; the file is damaged")
        yield _bfloat16(values - np.float32(weight.offset) if weight.offset else values)


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper 16 bits of finite float32 `values`, rounded to the nearest, ties to even."""
    bits: np.ndarray = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded: np.ndarray = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return rounded


def _percents(name: str, say: Callable[[str], None]) -> Callable[[float], None]:
    """A hook that says how far it is, every few seconds."""
    last = time.monotonic()

    def tell(share: float) -> None:
        nonlocal last
        if share < 1 and time.monotonic() - last >= _SECONDS:
            last = time.monotonic()
            say(f"converting {name}: {share:.0%}")

    return tell


def _save_tokenizer(gguf: Path, folder: Path) -> None:
    import transformers

    with quiet_transformers():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(gguf.parent), gguf_file=gguf.name, trust_remote_code=False
            )
        except Exception as error:
            raise ModelError(f"its tokenizer cannot be converted: {first_line(error)}") from error
        try:
            tokenizer.save_pretrained(folder)
        except OSError:
            raise
        except Exception as error:  # how a full disk shows, as a plain Exception from the tokenizer's library
            raise ModelError(f"cannot write the converted tokenizer to {folder}: {first_line(error)}") from error
