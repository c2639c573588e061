"""GGUF files against transformers' model of the same config and weights: nothing is dropped, nothing is made up."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import kvz
from kvz.cache.full import FullCache
from kvz.compression import compress
from kvz.errors import ArchiveMismatch, ModelError
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.gguf_files import write_gguf
from tests.near import NETWORK, assert_near, forward_terms
from tests.tiny import make_model_folder

IDS = torch.randint(3, 250, (90,), generator=torch.Generator().manual_seed(3))
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
GEMMA_KINDS = ["sliding_attention"] * 5 + ["full_attention"]
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA = {"layers": 6, "layer_types": GEMMA_KINDS, "query_pre_attn_scalar": 16, "head_dim": 16}


def llama3_factors() -> np.ndarray:
    """rope_freqs.weight of a Llama 3.1 with heads of 16, as llama.cpp's converter computes it."""
    waves = 2 * math.pi * 500000.0 ** (np.arange(8) / 8)
    smooth = (8192 / waves - 1) / 3
    return np.where(waves < 2048, 1, np.where(waves > 8192, 8, 1 / ((1 - smooth) / 8 + smooth))).astype(np.float32)


def rope(kind: str, **options: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 20000.0, **options}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}, {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}, {}, {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}, {}),
    "llama, wide heads": ("llama", {"head_dim": 16, "hidden_size": 84}, {"attention.key_length": 16}, {}),
    "llama, linear": (
        "llama",
        rope("linear", factor=4.0),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {},
    ),
    "llama, an older key": ("llama", rope("linear", factor=4.0), {"rope.scale_linear": 4.0}, {}),
    "llama, no scaling": ("llama", {}, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    "llama, yarn": ("llama", rope("yarn", **YARN), YARN_KEYS, {}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3}, {}, {"rope_freqs.weight": llama3_factors()}),
    "llama, 1 KV head of each": ("llama", {"kv_heads": 6}, {"attention.head_count_kv": None}, {}),
    "mistral": ("mistral", {}, {}, {}),
    "qwen2": ("qwen2", {}, {}, {}),
    "qwen2, yarn": (
        "qwen2",
        rope("yarn", attention_factor=1.5 * (0.1 * math.log(4) + 1), beta_fast=16.0, beta_slow=2.0, **YARN),
        {
            **YARN_KEYS,
            "rope.scaling.attn_factor": 1.5,
            "rope.scaling.yarn_beta_fast": 16.0,
            "rope.scaling.yarn_beta_slow": 2.0,
        },
        {},
    ),
    "qwen3": ("qwen3", {}, {}, {}),
    "qwen3 with wide heads": ("qwen3", {"head_dim": 32}, {}, {}),
    "gemma3": ("gemma3", GEMMA, {}, {}),
    "gemma3, untied": ("gemma3", {**GEMMA, "tie_word_embeddings": True}, {}, {}),
    "gemma3, linear": (
        "gemma3",
        {**GEMMA, "rope_parameters": GEMMA_ROPE},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
        {},
    ),
    "gemma3, a pattern": (
        "gemma3",
        {**GEMMA, "layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
        {"attention.sliding_window_pattern": 2},
        {},
    ),
    "gemma3, a pattern by layer": (
        "gemma3",
        {**GEMMA, "layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"attention.sliding_window_pattern": [False, True, False]},
        {},
    ),
    "gemma3, a scale": ("gemma3", {**GEMMA, "query_pre_attn_scalar": 9}, {"attention.scale": 1 / 3}, {}),
    "gemma3 27B": (
        "gemma3",
        {
            **GEMMA,
            "layers": 62,
            "head_dim": 16,
            "hidden_size": 72,
            "query_pre_attn_scalar": 12,
            "layer_types": (GEMMA_KINDS * 11)[:62],
        },
        {},
        {},
    ),
    "phi3": ("phi3", {}, {}, {}),
    "phi3, partial rotary": ("phi3", rope("default", partial_rotary_factor=0.75), {}, {}),
}


def converted(tmp_path: Path, name: str, **options: Any) -> tuple[Path, Path]:
    """The model folder of a case, and the GGUF file written of it."""
    family, config, keys, tensors = CASES[name]
    folder = make_model_folder(tmp_path / "folder", family, **config)
    path = write_gguf(tmp_path / "model.gguf", family, folder, keys, tensors, **options)
    return folder, path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVZ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def logits_of(model: LanguageModel) -> Tensor:
    cache = FullCache(model.geometry.shapes, len(IDS), model.dtype, model.device)
    return model.logits(IDS, 0, cache)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers_model(tmp_path, name):
    folder, path = converted(tmp_path, name)
    model = load_model(str(path), "cpu", "float32")
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for parameter in network.parameters():
        parameter.data = parameter.bfloat16().float()  # as they are kept
    want = network(IDS[None]).logits[0, -1]
    assert_near(logits_of(model), want, forward_terms(network.config, len(IDS)), size=NETWORK)


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a tensor is missing": ("llama", {}, {"blk.1.attn_k.weight": None}, r"lacks 1 tensors .* blk\.1\.attn_k\.weight"),
    "a bias without the others": ("llama", {}, {"blk.0.attn_q.bias": np.zeros(96)}, r"blk\.0\.attn_k\.bias first"),
    "a norm of another family": ("llama", {}, {"blk.0.attn_k_norm.weight": np.zeros(16)}, r"blk\.0\.attn_k_norm\.wei"),
    "a norm too few": (
        "gemma3",
        {"attention.sliding_window_pattern": 2},
        {"blk.0.post_ffw_norm.weight": None},
        r"blk\.0\.post_ffw_norm\.weight",
    ),
    "a tensor of another shape": ("llama", {}, {"output_norm.weight": np.ones(95)}, r"output_norm\.weight is \(95,\)"),
    "another vocabulary": ("llama", {"vocab_size": 300}, {}, r"token_embd\.weight is \(259, 96\) .* \(300, 96\)"),
    "a key that nobody knows": ("llama", {"attention.wobble": 3}, {}, r"llama\.attention\.wobble \(3\)"),
    "scaled logits": ("llama", {"logit_scale": 0.5}, {}, r"llama\.logit_scale"),
    "capped logits": ("gemma3", {"final_logit_softcapping": 30.0}, {}, r"gemma3\.final_logit_softcapping"),
    "experts": ("llama", {"expert_count": 8}, {}, r"llama\.expert_count"),
    "heads that differ": ("llama", {"attention.head_count_kv": [2, 1, 2]}, {}, r"head_count_kv is \[2, 1, 2\]"),
    "part of a head": ("llama", {"rope.dimension_count": 8}, {}, r"rope\.dimension_count is 8"),
    "other values": ("qwen3", {"attention.value_length": 8}, {}, r"attention\.value_length"),
    "a scale": ("qwen2", {"attention.scale": 0.5}, {}, r"qwen2\.attention\.scale"),
    "a window": ("qwen2", {"attention.sliding_window": 8}, {}, r"qwen2\.attention\.sliding_window is 8"),
    "a window of every layer": ("phi3", {"attention.sliding_window": 2047}, {}, r"'sliding_attention'.* 2047 tokens"),
    "no window where one belongs": ("gemma3", {"attention.sliding_window": None}, {}, r"no gemma3\.attention\.slid"),
    "no epsilon": ("llama", {"attention.layer_norm_rms_epsilon": None}, {}, r"no llama\.attention\.layer_norm_rms_eps"),
    "a scaling that nobody knows": (
        "llama",
        {"rope.scaling.type": "spiral", "rope.scaling.factor": 2.0},
        {},
        r"rope\.scaling\.type is 'spiral'",
    ),
    "longrope": (
        "phi3",
        {},
        {"rope_factors_long.weight": np.ones(8), "rope_factors_short.weight": np.ones(8)},
        r"rope_factors_long\.weight \('longrope'",
    ),
    "frequencies of its own": ("llama", {}, {"rope_freqs.weight": np.arange(1.0, 9.0)}, r"rope_freqs\.weight"),
    "frequencies in another family": ("qwen2", {}, {"rope_freqs.weight": np.ones(8)}, r"rope_freqs\.weight"),
    "no numbers": ("llama", {}, {"output_norm.weight": np.full(96, np.nan)}, r"output_norm\.weight holds values"),
    "a tokenizer of no kind": ("llama", {".tokenizer.ggml.model": "rwkv"}, {}, r"its tokenizer cannot be converted"),
    "part of a model": ("llama", {".split.count": 3}, {}, r"one of 3 parts"),
    "no language model": ("llama", {".general.type": "mmproj"}, {}, r"general\.type is 'mmproj'"),
    "no architecture": ("llama", {".general.architecture": "rwkv"}, {}, r"architecture 'rwkv'; it reads gemma3, llama"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_kvz_cannot_do_is_refused_by_name(tmp_path, cache, name):
    family, keys, tensors, message = REFUSED[name]
    folder = make_model_folder(tmp_path / "folder", family)
    path = write_gguf(tmp_path / "model.gguf", family, folder, keys, tensors)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(str(path), "cpu", "float32")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [found for found in cache.rglob("*") if found.is_file() and found.suffix != ".lock"] == []


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("llama", {"expert_count": 0, "attention.causal": True, "rope.scaling.finetuned": True, ".quantize.x": 1}),
        ("llama", {"rope.scaling.type": "yarn", "rope.scaling.factor": 1.0, "attention.scale": 0.25}),
        ("phi3", {"attention.sliding_window": 4096, "rope.scaling.original_context_length": 4096}),
        ("qwen2", {"attention.key_length": 16, "rope.dimension_count": 16}),
    ],
)
def test_keys_that_change_nothing_are_none(tmp_path, family, keys):
    folder = make_model_folder(tmp_path / "folder", family)
    plain = load_model(str(write_gguf(tmp_path / "plain.gguf", family, folder)), "cpu", "float32")
    more = load_model(str(write_gguf(tmp_path / "more.gguf", family, folder, keys)), "cpu", "float32")
    assert more.identity.fingerprints == plain.identity.fingerprints
    assert torch.equal(logits_of(more), logits_of(plain))


def test_a_base_that_is_not_there_is_taken_as_10000_and_said(tmp_path):
    folder = make_model_folder(tmp_path / "folder", rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    said: list[str] = []
    without = write_gguf(tmp_path / "without.gguf", "llama", folder, {"rope.freq_base": None})
    model = load_model(str(without), "cpu", "float32", said.append)
    assert any("no llama.rope.freq_base; taking 10000" in line for line in said)
    given = load_model(str(write_gguf(tmp_path / "with.gguf", "llama", folder)), "cpu", "float32", said.append)
    assert model.identity.fingerprints == given.identity.fingerprints


def test_it_is_said_to_be_converted_when_it_is_and_not_again(tmp_path):
    _, path = converted(tmp_path, "llama")
    said: list[str] = []
    load_model(str(path), "cpu", "float32", said.append)
    assert [line for line in said if "converting model.gguf to bfloat16" in line] == said
    assert len(said) == 1
    load_model(str(path), "cpu", "float32", said.append)
    assert len(said) == 1


def test_every_token_that_ends_a_text_is_one(tmp_path):
    folder = make_model_folder(tmp_path / "folder")
    keys = {".tokenizer.ggml.eot_token_id": 1, ".tokenizer.ggml.eom_token_id": 2}
    path = write_gguf(tmp_path / "model.gguf", "llama", folder, keys)
    assert load_model(str(path), "cpu", "float32").end_ids == {1, 2}


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_weights_are_those_of_the_file_rounded_to_bfloat16(tmp_path, kind):
    folder, path = converted(tmp_path, "qwen2", kind=getattr(gguf.GGMLQuantizationType, kind))
    model = load_model(str(path), "cpu", "float32")
    got = load_file(model.source.folder / "model.safetensors")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    own = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.2.mlp.down_proj.weight": "blk.2.ffn_down.weight",
    }
    for name, theirs in own.items():
        values = gguf.quants.dequantize(stored[theirs].data, stored[theirs].tensor_type)
        assert torch.equal(got[name], torch.from_numpy(values.copy()).bfloat16())
    assert got.keys() == load_file(folder / "model.safetensors").keys()


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_file_that_is_cut_short_is_refused_in_one_line(tmp_path, cache, share):
    _, path = converted(tmp_path, "llama")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match=re.escape(f"{path}")) as caught:
        load_model(str(path), "cpu", "float32")
    assert "cut short" in str(caught.value)
    assert [found for found in cache.rglob("*") if found.is_file() and found.suffix != ".lock"] == []


def test_what_an_older_conversion_dropped_is_converted_again(tmp_path, cache):
    """A folder in the cache that was converted without all of the metadata is not used again, and not left there."""
    import xxhash

    _, path = converted(tmp_path, "llama, linear")
    older = cache / "gguf" / f"model-{xxhash.xxh3_128(path.read_bytes()).hexdigest()}"
    older.mkdir(parents=True)
    (older / "config.json").write_text("{}")
    (older / "kvz-files.json").write_text(json.dumps({"config.json": 2}))
    assert load_model(str(path), "cpu", "float32").identity.config.rope_parameters["factor"] == 4.0
    assert not older.exists()


def test_an_archive_made_without_the_metadata_is_refused_with_the_reason(tmp_path):
    """What the file says of positions was dropped once: its model was, to an archive, the one without scaling."""
    folder, path = converted(tmp_path, "llama, linear")
    write_gguf(path, "llama", folder)
    compress(TEXT, load_model(str(path), "cpu", "float32"), ratio=0.5).save(tmp_path / "a.kvz")
    write_gguf(path, "llama", folder, CASES["llama, linear"][2])
    with pytest.raises(ArchiveMismatch, match=r"the weights of .*model\.gguf differ.* GGUF file's metadata"):
        kvz.load(tmp_path / "a.kvz").ask("Who?", 3)


def test_it_needs_no_accelerate(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    load_model(str(converted(tmp_path, "llama")[1]), "cpu", "float32")
