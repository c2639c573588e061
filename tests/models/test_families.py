from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from kvz.errors import ModelError, UnsupportedModel, UsageError
from kvz.geometry import Geometry, LayerShape
from kvz.models.cache_geometry import geometry_of
from kvz.models.config_file import ModelConfig
from kvz.models.language_model import load_model
from tests.tiny import FAMILIES, GEMMA_WINDOW, make_model_folder


@pytest.mark.parametrize("family", FAMILIES)
def test_geometry(tmp_path, family):
    model = load_model(str(make_model_folder(tmp_path, family, query_heads=4, kv_heads=2)), "cpu", "float32")
    windows = [GEMMA_WINDOW, None, GEMMA_WINDOW] if family == "gemma3" else [None] * 3
    assert model.geometry.shapes == tuple(LayerShape(2, 16, window) for window in windows)
    assert model.geometry.query_heads == 4


def config_of(family: str, **fields: object) -> ModelConfig:
    return ModelConfig.from_fields({"model_type": family, **fields})


def test_other_architectures_are_refused_by_name():
    for config in (transformers.GPT2Config(), transformers.MambaConfig(), transformers.Qwen3NextConfig()):
        with pytest.raises(UnsupportedModel, match=f"'{config.model_type}' is not supported"):
            ModelConfig.from_fields(config.to_dict())


def test_layers_that_cannot_be_stored_are_refused_by_kind():
    kinds = ["full_attention", "linear_attention"]
    with pytest.raises(UnsupportedModel, match=r"layer 1 .*'linear_attention'"):
        geometry_of(config_of("qwen3", num_hidden_layers=2, layer_types=kinds))
    with pytest.raises(UnsupportedModel, match=r"'sliding_attention'.*nothing to evict"):
        geometry_of(config_of("mistral", sliding_window=4096))
    with pytest.raises(UnsupportedModel, match=r"'sliding_attention'.*nothing to evict"):
        geometry_of(config_of("phi3", sliding_window=2047))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_kv_shared_layers": 10}, "num_kv_shared_layers"),
        ({"attention_k_eq_v": True}, "attention_k_eq_v"),
        ({"use_bidirectional_attention": True}, "both directions"),
    ],
)
def test_shared_and_tied_layers_are_refused_by_name(fields, message):
    with pytest.raises(UnsupportedModel, match=message):
        geometry_of(config_of("gemma3_text", **fields))


def test_rows_of_a_hybrid_model_are_those_of_its_full_layers():
    shapes = (LayerShape(2, 16), LayerShape(4, 8, 24), LayerShape(3, 32))
    geometry = Geometry(12, shapes, 4096)
    assert geometry.row_layers == (0, 0, 2, 2, 2)
    assert [geometry.rows(layer) for layer in range(3)] == [slice(0, 2), slice(0, 0), slice(2, 5)]


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_position_embeddings_that_depend_on_the_length_are_refused(kind):
    with pytest.raises(UnsupportedModel, match=kind):
        geometry_of(config_of("llama", rope_parameters={"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}))


def test_code_that_comes_with_a_model_is_neither_run_nor_offered(tmp_path, monkeypatch):
    folder = make_model_folder(tmp_path)
    edit_config(folder, model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    (folder / "own.py").write_text("raise SystemExit('this code was run')")
    monkeypatch.setattr("builtins.input", lambda prompt: pytest.fail("asked on stdin"))
    with pytest.raises(ModelError):
        load_model(str(folder), "cpu", "float32")


def test_other_weights_in_the_folder_do_not_count(tmp_path, tiny):
    folder = make_model_folder(tmp_path)
    save_file({"extra": torch.ones(3)}, folder / "consolidated.safetensors")
    assert load_model(str(folder), "cpu", "float32").identity.fingerprints == tiny.identity.fingerprints


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_fingerprints_tell_models_apart_but_not_dtypes(tmp_path, tiny, tiny_folder):
    def prints_of(name: str, dtype: str = "float32", **options):
        return load_model(str(make_model_folder(tmp_path / name, **options)), "cpu", dtype).identity.fingerprints

    same = load_model(str(tiny_folder), "cpu", "bfloat16").identity.fingerprints
    assert same == tiny.identity.fingerprints
    assert prints_of("same") == tiny.identity.fingerprints
    weights = prints_of("weights", seed=1)
    assert weights.model != tiny.identity.fingerprints.model
    assert weights.tokenizer == tiny.identity.fingerprints.tokenizer
    template = prints_of("template", template=None)
    assert (template.model, template.tokenizer) == (
        tiny.identity.fingerprints.model,
        tiny.identity.fingerprints.tokenizer,
    )
    assert template.template != tiny.identity.fingerprints.template
    folder = make_model_folder(tmp_path / "rope")
    edit_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 12345.0})
    assert load_model(str(folder), "cpu", "float32").identity.fingerprints.model != tiny.identity.fingerprints.model


def as_fp8(folder: Path) -> None:
    """Weights of a layer in 8 bits with a scale of each matrix, as several programs write them."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "layers.1" in name and tensors[name].ndim == 2]:
        scale = tensors[name].abs().max() / 448
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    "method", ["modelopt", "fp8", "gptq", "awq", "bitsandbytes", "compressed-tensors", "new", None]
)
def test_quantised_weights_are_refused_by_name_before_they_are_read(tmp_path, method):
    folder = make_model_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(b"cannot be read")
    edit_config(folder, quantization_config={"quant_method": method} if method else {"bits": 4})
    with pytest.raises(
        UnsupportedModel, match=rf"quantised.*quantization_config: {method or 'of no method'}"
    ) as caught:
        load_model(str(folder), "cpu", "float32")
    assert "\n" not in str(caught.value)


def test_scales_without_a_quantization_config_are_refused_by_name(tmp_path):
    folder = make_model_folder(tmp_path)
    as_fp8(folder)
    with pytest.raises(ModelError, match=r"no use for, model\.layers\.1\.mlp\.down_proj\.weight_scale first"):
        load_model(str(folder), "cpu", "float32")


@pytest.mark.parametrize("name", ["k_proj.bias", "k_norm.weight", "k_proj.weight_scale", "k_proj.lora_A.weight"])
def test_tensors_that_a_family_has_no_place_for_are_refused_by_name(tmp_path, name):
    folder = make_model_folder(tmp_path)
    full = f"model.layers.0.self_attn.{name}"
    save_file({**load_file(folder / "model.safetensors"), full: torch.ones(32)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=rf"no use for, {full} first"):
        load_model(str(folder), "cpu", "float32")


@pytest.mark.parametrize("harmless", ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_buffers_that_follow_from_the_config_do_no_harm(tmp_path, harmless):
    folder = make_model_folder(tmp_path, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file({**tensors, **head, harmless: torch.ones(8)}, folder / "model.safetensors")
    load_model(str(folder), "cpu", "float32")


def test_a_head_that_is_called_tied_and_is_another_is_refused(tmp_path):
    folder = make_model_folder(tmp_path, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"] * 2}
    save_file({**tensors, **head}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"lm_head\.weight .*tie_word_embeddings"):
        load_model(str(folder), "cpu", "float32")


def test_half_a_shard_is_refused_in_one_line(tmp_path):
    folder = make_model_folder(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, own in shards.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    where = {name: file for file, own in shards.items() for name in own}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "model.safetensors").unlink()
    load_model(str(folder), "cpu", "float32")
    data = (folder / "model-2.safetensors").read_bytes()
    (folder / "model-2.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match=r"cannot load the weights in .*copy or fetch the model again") as caught:
        load_model(str(folder), "cpu", "float32")
    assert "\n" not in str(caught.value)


@pytest.mark.model
def test_the_embedded_model_is_the_same_however_it_was_converted(embedded):
    """Archives made with it name these; a change of the conversion must not make them another model's."""
    prints = embedded.identity.fingerprints
    assert prints.model == "4d4a4ea76672d9545f092743b6e1d77d"
    assert prints.tokenizer == "e7052088cff36cf3bca26b807cd5d8b8"
    assert prints.template == "7b5d1bbdb738727bcbe44524606b3a27"


def test_one_changed_tensor_changes_the_fingerprint(tmp_path, tiny):
    folder = make_model_folder(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.self_attn.k_proj.weight"] += 1e-3
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert load_model(str(folder), "cpu", "float32").identity.fingerprints.model != tiny.identity.fingerprints.model


@pytest.mark.parametrize(("device", "dtype"), [("nonsense", "auto"), ("cuda:99", "auto"), ("cpu", "int8")])
def test_devices_and_dtypes_that_do_not_exist(tiny_folder, device, dtype):
    with pytest.raises(UsageError):
        load_model(str(tiny_folder), device, dtype)


def test_auto_dtype_is_one_of_two(tiny_folder):
    assert load_model(str(tiny_folder)).dtype in (torch.bfloat16, torch.float32)


def test_damaged_model_files_are_refused(tmp_path):
    folder = make_model_folder(tmp_path)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ModelError, match="cannot load the weights"):
        load_model(str(folder), "cpu", "float32")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(str(folder), "cpu", "float32")


def test_weights_that_are_missing_are_refused_and_not_made_up(tmp_path):
    folder = make_model_folder(tmp_path)
    edit_config(folder, num_hidden_layers=4, layer_types=None)
    with pytest.raises(ModelError, match=r"lack \d+ tensors .* model\.layers\.3"):
        load_model(str(folder), "cpu", "float32")


def test_sliding_layers_of_families_that_do_not_go_by_them_are_refused():
    kinds = ["sliding_attention", "full_attention"]
    with pytest.raises(UnsupportedModel, match="do not go by"):
        geometry_of(config_of("llama", num_hidden_layers=2, layer_types=kinds, sliding_window=8))


def test_sizes_that_no_model_has():
    with pytest.raises(UnsupportedModel, match="sliding_window is 0"):
        geometry_of(config_of("gemma3_text", sliding_window=0))
    geometry = geometry_of(config_of("gemma3_text", sliding_window=2**40, max_position_embeddings=10**12))
    assert geometry.max_positions == 2**31
    assert geometry.shapes[0].window == 2**31
    with pytest.raises(UnsupportedModel, match="no layers"):
        geometry_of(config_of("llama", num_hidden_layers=0))
