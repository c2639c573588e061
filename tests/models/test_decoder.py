"""The forward pass against transformers' own, in float32 over random weights: every family, every way it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvz.errors import ModelError, UnsupportedModel
from kvz.kernels.linear import MANY_ROWS, fast_bfloat16, linear
from kvz.models.architecture import Architecture
from kvz.models.checkpoint import load_weights
from kvz.models.config_file import ModelConfig, read_config
from kvz.models.decoder import Attend, Decoder
from tests.near import NETWORK, assert_near, forward_terms, rounding
from tests.tiny import FAMILIES, make_model_folder

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
    "rope_theta": 500000.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen2, yarn with scales": ("qwen2", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}}),
    "qwen2, yarn not truncated": ("qwen2", {"rope_parameters": YARN | {"truncate": False, "attention_factor": 1.2}}),
    "qwen2, sliding": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["full_attention"] * 2 + ["sliding_attention"],
        },
    ),
    "qwen3": ("qwen3", {}),
    "gemma3": ("gemma3", {}),
    "phi3": ("phi3", {}),
    "phi3, partial rotary": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}},
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "granite": ("granite", {}),
    "olmo2": ("olmo2", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe, a dense layer": ("qwen3_moe", {"mlp_only_layers": [1], "norm_topk_prob": True}),
    "mixtral": ("mixtral", {}),
}


class Dense:
    """Keys and values of every layer of one sequence, and attention over them written out."""

    def __init__(self, architecture: Architecture) -> None:
        self._facts = architecture
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if layer in self._pairs:
            key, value = (torch.cat(both) for both in zip(self._pairs[layer], (key, value), strict=True))
        self._pairs[layer] = key, value
        block = self._facts.blocks[layer]
        keys, values = (t.repeat_interleave(block.query_heads // block.kv_heads, 1) for t in (key, value))
        back = torch.arange(len(key) - len(query), len(key))[:, None] - torch.arange(len(key))
        seen = (back >= 0) & (back < (block.window or len(key)))
        scores = torch.einsum("qhd,khd->hqk", query, keys) * self._facts.scale
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values)


def side_by_side(stores: list[Dense]) -> Attend:
    """One token each of several sequences."""

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = zip(stores, *(t.split(1) for t in (query, key, value)), strict=True)
        return torch.cat([store.attend(layer, q, k, v) for store, q, k, v in parts])

    return attend


def load(folder: Path) -> Decoder:
    facts = Architecture.from_config(read_config(folder))
    return Decoder(facts, load_weights(folder, facts, torch.float32, torch.device("cpu")), torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(tmp_path, name):
    """A prompt at once; in two chunks and single steps; and two sequences of different lengths in steps of both."""
    family, options = CASES[name]
    folder = make_model_folder(tmp_path, family, **options)
    decoder = load(folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(3, 250, (70,), generator=torch.Generator().manual_seed(1))
    want = network(ids[None]).logits[0]

    def run(part: slice, store: Dense) -> Tensor:
        positions = torch.arange(len(ids))[part]
        return decoder.logits(decoder.forward(ids[part], positions, store.attend))

    terms = forward_terms(network.config, len(ids))
    whole = run(slice(0, 70), Dense(decoder.architecture))
    assert_near(whole, want, terms, size=NETWORK)
    store = Dense(decoder.architecture)
    parts = [run(slice(a, b), store) for a, b in ((0, 33), (33, 66), (66, 67), (67, 68), (68, 69), (69, 70))]
    assert_near(torch.cat(parts), want, terms, size=NETWORK)

    lengths = torch.tensor([20, 45])
    stores = [Dense(decoder.architecture) for _ in lengths]
    for length, own in zip(lengths.tolist(), stores, strict=True):
        run(slice(0, length), own)
    for step in range(3):
        hidden = decoder.forward(ids[lengths + step], lengths + step, side_by_side(stores))
        assert_near(decoder.logits(hidden), want[lengths + step], terms, size=NETWORK)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral"])
@pytest.mark.parametrize("rows", [1, 3, 4, 6, 16, 40, 300])
def test_weights_of_16_bits_are_widened_not_rounded_to(tmp_path, name, rows):
    """As far as float32 goes, any number of rows gives what the widened weights give. Many rows are rounded, on a CPU
    that multiplies bfloat16; there, a router may choose otherwise."""
    rounded = rows >= MANY_ROWS and fast_bfloat16()
    if rounded and name == "mixtral":
        return
    wide = make_model_folder(tmp_path / "wide", name)
    network = transformers.AutoModelForCausalLM.from_pretrained(wide, dtype=torch.bfloat16)
    folder = tmp_path / "narrow"
    network.save_pretrained(folder)
    facts = Architecture.from_config(read_config(folder))
    narrow = load_weights(folder, facts, torch.bfloat16, torch.device("cpu"))
    network = network.float().eval()
    if name == "gemma3":  # it scales embeddings by a factor in the weights' own dtype
        network.model.embed_tokens.embed_scale = network.model.embed_tokens.embed_scale.bfloat16().float()
    ids = torch.randint(3, 250, (rows,), generator=torch.Generator().manual_seed(2))
    decoder = Decoder(facts, narrow, torch.float32)
    got = decoder.logits(decoder.forward(ids, torch.arange(rows), Dense(facts).attend))
    want = network(ids[None]).logits[0]
    limit = 0.03 if rounded else rounding(forward_terms(network.config, rows))
    assert (got - want).norm() <= limit * want.norm()


def test_each_layer_s_input_is_shown_before_it_attends(tmp_path):
    decoder = load(make_model_folder(tmp_path))
    order: list[tuple[str, int]] = []
    shown: list[Tensor] = []
    store = Dense(decoder.architecture)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        order.append(("attend", layer))
        return store.attend(layer, query, key, value)

    def watch(layer: int, hidden: Tensor) -> None:
        order.append(("watch", layer))
        shown.append(hidden)

    ids = torch.arange(3, 12)
    decoder.fill(ids, torch.arange(9), attend, watch)
    assert order == [(what, layer) for layer in range(3) for what in ("watch", "attend")]
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    want = network(ids[None], output_hidden_states=True).hidden_states
    for got, expected in zip(shown, want, strict=False):
        assert_near(got, expected[0], forward_terms(network.config, len(ids)), size=NETWORK)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral' position embeddings"),
        ({"rope_parameters": {"rope_type": "linear"}}, "'linear' position embeddings are damaged: 'factor' is missing"),
        ({"rope_theta": None}, "'default' position embeddings are damaged"),
        ({"head_dim": 17}, "cannot be turned in pairs"),
        ({"model_type": "phi3", "rope_parameters": {"type": "linear", "factor": 2.0}}, "phi3 models do not have"),
        ({"model_type": "phi3", "rope_parameters": {"type": "yarn", "factor": 2.0}}, "'longrope'"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers .* 1 of 36"),
        ({"model_type": "gemma3_text", "query_pre_attn_scalar": None}, "query_pre_attn_scalar"),
        ({"hidden_act": "relu"}, "activation is 'relu'"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ],
    ids=str,
)
def test_what_a_family_s_own_model_does_not_do_is_refused_by_name(fields, message):
    with pytest.raises(UnsupportedModel, match=message):
        Architecture.from_config(ModelConfig.from_fields({"model_type": "llama", **fields}))


def test_tensors_of_no_place_or_another_shape_are_refused_by_name(tmp_path):
    folder = make_model_folder(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj"
    for extra, message in (
        ({f"{name}.bias": torch.zeros(32)}, f"no use for, {name}.bias first"),
        (
            {f"{name}.weight": torch.zeros(48, 96)},
            r"k_proj.weight .* is \(48, 96\) and config.json makes it \(32, 96\)",
        ),
        ({f"{name}.weight": torch.zeros(32, 96, dtype=torch.int8)}, f"{name}.weight .* is of dtype I8"),
    ):
        save_file({**tensors, **extra}, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=message):
            load(folder)
    harmless = {"model.rotary_emb.inv_freq": torch.ones(8)}
    save_file({**tensors, **harmless}, folder / "model.safetensors", {"format": "pt"})
    load(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_a_step_are_those_of_transformers_products(tmp_path, family):
    """All linear layers of its model, a tied head among them; of experts, the share that is chosen."""
    folder = make_model_folder(tmp_path, family, query_heads=6, kv_heads=2, head_dim=20, layers=3)
    network = transformers.AutoModelForCausalLM.from_pretrained(str(folder))
    products = sum(module.weight.numel() for module in network.modules() if isinstance(module, torch.nn.Linear))
    experts = {name: p.numel() for name, p in network.named_parameters() if ".experts." in name or "mlp.gate." in name}
    products += sum(size // 2 if ".experts." in name else size for name, size in experts.items())
    assert Architecture.from_config(read_config(folder)).step_weights == products


def test_biases_in_float32_beside_16_bits() -> None:
    """As on a GPU: rows and weights in bfloat16, biases as they are kept."""
    rows, weight, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    got = linear(rows.bfloat16(), weight.bfloat16(), bias)
    assert got.dtype == torch.bfloat16
    want = rows.bfloat16().float() @ weight.bfloat16().float().T + bias
    assert (got.float() - want).norm() <= 0.02 * want.norm()
