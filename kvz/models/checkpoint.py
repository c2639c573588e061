"""A checkpoint's tensors, read by the safetensors library into the places that an architecture has for them.

Every tensor that the architecture calls for must be there, with its shape, and every tensor of the files must have a
place: both are known from the files' headers, before any weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvz.errors import ModelError
from kvz.models.architecture import Architecture, Block
from kvz.models.rotary import Rotary
from kvz.models.weights import weight_files

__all__ = ["BlockWeights", "DecoderWeights", "ExpertWeights", "load_weights", "random_weights"]

_UNUSED = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|self_attn\.masked_bias|self_attn\.bias)")
_DTYPES = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """`router [E,hidden]`, and of each expert `gate_up [E,2I,hidden]` and `down [E,hidden,I]`."""

    router: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """One layer: matrices `[out,in]` as the file has them, norms and biases in float32. What a family lacks is None.

    `qkv` has the rows of queries, keys and values, `gate_up` those of gate and up.
    """

    qkv: Tensor
    output: Tensor
    gate_up: Tensor | None
    down: Tensor | None
    experts: ExpertWeights | None = None
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    attention_norm: Tensor | None = None
    attention_post_norm: Tensor | None = None
    mlp_norm: Tensor | None = None
    mlp_post_norm: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """All of a model: `embedding [vocabulary,hidden]`, which is also the `head` of a tied one, and its rotaries."""

    embedding: Tensor
    blocks: tuple[BlockWeights, ...]
    norm: Tensor
    head: Tensor
    rotaries: Mapping[str, Rotary]

    @property
    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, a tied head once."""
        owners: list[Any] = [self, *self.blocks, *(block.experts for block in self.blocks if block.experts)]
        seen = {id(t): t for owner in owners for t in vars(owner).values() if isinstance(t, Tensor)}
        return iter(seen.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


def load_weights(folder: Path, architecture: Architecture, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Read the weights of a model folder to a device, matrices in `dtype`.

    On a CPU, what lies in the file as it is wanted is mapped, not copied. Raises ModelError, by name, for tensors that
    are missing, of another shape, of no place in the architecture, or not readable.
    """
    try:
        with ExitStack() as stack:
            files = {path: stack.enter_context(safe_open(str(path), "pt")) for path in weight_files(folder)}
            where = {name: file for file in files.values() for name in file.keys()}  # noqa: SIM118 - it is no dict
            prefix = "model." if any(name.startswith("model.") for name in where) else ""
            source = _FileTensors(folder, where, prefix, architecture)
            source.check()
            return _assembled(source, architecture, dtype, device)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot load the weights in {folder}: {error}; copy or fetch the model again") from error


def random_weights(
    architecture: Architecture, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> DecoderWeights:
    """Weights that say nothing, of the shapes that `architecture` has, for measurements."""
    return _assembled(_RandomTensors(architecture, seed), architecture, dtype, device)


def shapes_of(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this architecture has, without the prefix "model.", and its shape."""
    hidden = architecture.hidden
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (architecture.vocabulary, hidden)}
    for index, block in enumerate(architecture.blocks):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _block_shapes(architecture, block).items()}
    shapes["norm.weight"] = (hidden,)
    if not architecture.tied:
        shapes["lm_head.weight"] = (architecture.vocabulary, hidden)
    return shapes


def _block_shapes(facts: Architecture, block: Block) -> dict[str, tuple[int, ...]]:
    hidden = facts.hidden
    rows = _rows(block)
    queries, keys = rows["q"], rows["k"]
    columns = {"o": queries, "down": block.intermediate}
    shapes: dict[str, tuple[int, ...]] = {}
    for names in _linears(facts, block):
        height = sum(rows.get(name, hidden) for name in names)
        shapes[_linear_name(names)] = (height, columns.get(names[0], hidden))
        if facts.biases.issuperset(names):
            shapes[_linear_name(names, "bias")] = (height,)
    for norm in _norm_names(facts).values():
        shapes[f"{norm}.weight"] = (hidden,)
    if facts.head_norm is not None:
        whole = facts.head_norm == "all"
        shapes["self_attn.q_norm.weight"] = (queries if whole else block.head_dim,)
        shapes["self_attn.k_norm.weight"] = (keys if whole else block.head_dim,)
    if block.experts is not None:
        router, experts, gate, up, down = facts.expert_names
        shapes[f"{router}.weight"] = (block.experts.count, hidden)
        for number in range(block.experts.count):
            for name in (gate, up):
                shapes[f"{experts}.{number}.{name}.weight"] = (block.intermediate, hidden)
            shapes[f"{experts}.{number}.{down}.weight"] = (hidden, block.intermediate)
    return shapes


def _rows(block: Block) -> dict[str, int]:
    queries, pairs = block.query_heads * block.head_dim, block.kv_heads * block.head_dim
    return {"q": queries, "k": pairs, "v": pairs, "gate": block.intermediate, "up": block.intermediate}


def _linears(facts: Architecture, block: Block) -> list[tuple[str, ...]]:
    """The layer's matrices as the file has them, each by what it holds."""
    attention: list[tuple[str, ...]] = [("q", "k", "v")] if "qkv" in facts.fused else [("q",), ("k",), ("v",)]
    mlp: list[tuple[str, ...]] = [("gate", "up")] if "gate_up" in facts.fused else [("gate",), ("up",)]
    return [*attention, ("o",), *([] if block.experts else [*mlp, ("down",)])]


def _linear_name(names: Sequence[str], kind: str = "weight") -> str:
    where = "self_attn" if names[0] in "qkvo" else "mlp"
    joint = {("q", "k", "v"): "qkv", ("gate", "up"): "gate_up"}.get(tuple(names), names[0])
    return f"{where}.{joint}_proj.{kind}"


def _norm_names(facts: Architecture) -> dict[str, str]:
    """The file's names of a layer's norms over hidden states."""
    if not facts.pre_norm:
        return {"attention_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
    if not facts.post_norm:
        return {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    return {
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    }


class _FileTensors:
    """Tensors of safetensors files by their names without prefix."""

    def __init__(self, folder: Path, where: dict[str, Any], prefix: str, architecture: Architecture) -> None:
        self._folder, self._where, self._prefix = folder, where, prefix
        self._shapes = shapes_of(architecture)
        self._tied = architecture.tied

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._where[self._full(name)].get_tensor(self._full(name))
        return tensor

    def check(self) -> None:
        """Compare the headers with what the architecture calls for. Raises ModelError."""
        wanted = {self._full(name): shape for name, shape in self._shapes.items()}
        if missing := sorted(wanted.keys() - self._where.keys()):
            raise ModelError(
                f"the weights in {self._folder} lack {len(missing)} tensors that config.json calls for, "
                f"{missing[0]} first; copy or fetch the model again"
            )
        unused = {"lm_head.weight"} if self._tied else set()
        extra = sorted(n for n in self._where.keys() - wanted.keys() - unused if not _UNUSED.fullmatch(n))
        if extra:
            raise ModelError(
                f"the weights in {self._folder} have {len(extra)} tensors that a model of this config.json has no use "
                f"for, {extra[0]} first; answers would be wrong without them: use 16- or 32-bit floats"
            )
        for name, shape in wanted.items():
            part = self._where[name].get_slice(name)
            if tuple(part.get_shape()) != shape:
                raise ModelError(
                    f"tensor {name} in {self._folder} is {tuple(part.get_shape())} and config.json makes it {shape}; "
                    "copy or fetch the model again"
                )
            if part.get_dtype() not in _DTYPES:
                raise ModelError(
                    f"tensor {name} in {self._folder} is of dtype {part.get_dtype()}, which kvz cannot use; "
                    "use a checkpoint in bfloat16, float16 or float32"
                )
        if self._tied and "lm_head.weight" in self._where:
            self._check_tied_head(self._where["lm_head.weight"].get_tensor("lm_head.weight"))

    def _check_tied_head(self, head: Tensor) -> None:
        embedding = self["embed_tokens.weight"]
        if head.dtype != embedding.dtype or not torch.equal(head, embedding):
            raise ModelError(
                f"lm_head.weight in {self._folder} is not the embedding, as config.json has it (tie_word_embeddings); "
                "one of the two is damaged"
            )

    def _full(self, name: str) -> str:
        return name if name.startswith("lm_head") else f"{self._prefix}{name}"


class _RandomTensors:
    """Random tensors by the names that files have."""

    def __init__(self, architecture: Architecture, seed: int) -> None:
        self._shapes = shapes_of(architecture)
        self._generator = torch.Generator().manual_seed(seed)

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        drawn: Tensor = torch.randn(shape, generator=self._generator)
        return drawn.mul_(prod(shape[1:]) ** -0.5)


def _assembled(
    source: _FileTensors | _RandomTensors, facts: Architecture, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    def placed(name: str) -> Tensor:
        return source[name].to(device, dtype)

    embedding = placed("embed_tokens.weight")
    blocks = tuple(
        _block(source, facts, block, f"layers.{index}.", dtype, device) for index, block in enumerate(facts.blocks)
    )
    head = embedding if facts.tied else placed("lm_head.weight")
    rotaries = {name: rotary.to(device) for name, rotary in facts.rotaries.items()}
    return DecoderWeights(embedding, blocks, _norm(source, facts, "norm.weight", device), head, rotaries)


def _block(
    source: _FileTensors | _RandomTensors,
    facts: Architecture,
    block: Block,
    where: str,
    dtype: torch.dtype,
    device: torch.device,
) -> BlockWeights:
    def joint(names: Sequence[str], kind: str = "weight") -> Tensor | None:
        """The rows of several matrices one after another, which the file may have as one."""
        if kind == "bias" and not facts.biases.issuperset(names):
            return None
        target = dtype if kind == "weight" else torch.float32
        own = [name for name in _linears(facts, block) if set(name) <= set(names)]
        parts = [source[where + _linear_name(name, kind)] for name in own]
        if len(parts) == 1:
            return parts[0].to(device, target)
        out = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=target, device=device)
        for view, part in zip(out.split([len(part) for part in parts]), parts, strict=True):
            view.copy_(part)
        return out

    norms = {key: _norm(source, facts, f"{where}{name}.weight", device) for key, name in _norm_names(facts).items()}
    if facts.head_norm is not None:
        norms["query_norm"] = _norm(source, facts, f"{where}self_attn.q_norm.weight", device)
        norms["key_norm"] = _norm(source, facts, f"{where}self_attn.k_norm.weight", device)
    qkv, output = joint("qkv"), joint("o")
    assert qkv is not None
    assert output is not None
    dense = block.experts is None
    return BlockWeights(
        qkv,
        output,
        joint(("gate", "up")) if dense else None,
        joint(("down",)) if dense else None,
        None if dense else _experts(source, facts, block, where, dtype, device),
        qkv_bias=joint("qkv", "bias"),
        output_bias=joint("o", "bias"),
        gate_up_bias=joint(("gate", "up"), "bias") if dense else None,
        down_bias=joint(("down",), "bias") if dense else None,
        **norms,
    )


def _experts(
    source: _FileTensors | _RandomTensors,
    facts: Architecture,
    block: Block,
    where: str,
    dtype: torch.dtype,
    device: torch.device,
) -> ExpertWeights:
    assert block.experts is not None
    router, experts, gate, up, down = facts.expert_names
    count, size, hidden = block.experts.count, block.intermediate, facts.hidden
    joint = torch.empty(count, 2 * size, hidden, dtype=dtype, device=device)
    downs = torch.empty(count, hidden, size, dtype=dtype, device=device)
    for number in range(count):
        joint[number, :size] = source[f"{where}{experts}.{number}.{gate}.weight"]
        joint[number, size:] = source[f"{where}{experts}.{number}.{up}.weight"]
        downs[number] = source[f"{where}{experts}.{number}.{down}.weight"]
    return ExpertWeights(source[f"{where}{router}.weight"].to(device, dtype), joint, downs)


def _norm(source: _FileTensors | _RandomTensors, facts: Architecture, name: str, device: torch.device) -> Tensor:
    weight = source[name].to(device, torch.float32)
    return 1 + weight if facts.centred else weight
