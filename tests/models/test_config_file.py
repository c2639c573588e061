"""config.json as kvz reads it is what transformers makes of it, defaults and old names included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import transformers
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvz.errors import ModelError, UnsupportedModel
from kvz.models.cache_geometry import geometry_of
from kvz.models.config_file import ModelConfig, read_config
from kvz.models.families import FAMILIES

SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0}
ROPES: list[dict[str, Any] | None] = [
    None,
    {},
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 500000},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 2, "rope_theta": 1e6},
    {**LLAMA3, "original_max_position_embeddings": 512},
    LLAMA3,
    {"type": "yarn", "factor": 4.0, "beta_fast": 32},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {
        "full_attention": {"rope_type": "yarn", "factor": 2.0},
        "sliding_attention": {"rope_theta": 1234.5},
    },
    {"full_attention": {"type": "linear", "factor": 8.0}, "sliding_attention": None},
    {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 7}},
]
KINDS = ["full_attention", "sliding_attention"]
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "rope_theta": st.sampled_from([10000, 10000.0, 2.5e5]),
    "rope_scaling": st.sampled_from(ROPES),
    "rope_parameters": st.sampled_from(ROPES),
    "rope_local_base_freq": st.sampled_from([10000, 7.5]),
    "partial_rotary_factor": st.sampled_from([None, 0.5, 1]),
    "original_max_position_embeddings": st.just(333),
    "max_position_embeddings": st.sampled_from([512, 40960]),
    "head_dim": st.sampled_from([None, 16, 32]),
    "num_key_value_heads": st.sampled_from([None, 1, 2]),
    "sliding_window": st.sampled_from([None, 128]),
    "use_sliding_window": st.booleans(),
    "max_window_layers": st.sampled_from([0, 2, 28]),
    "sliding_window_pattern": st.sampled_from([1, 2, 6]),
    "layer_types": st.one_of(st.none(), st.lists(st.sampled_from(KINDS), min_size=4, max_size=4)),
    "no_rope_layers": st.one_of(st.none(), st.lists(st.sampled_from([0, 1]), min_size=4, max_size=4)),
    "no_rope_layer_interval": st.sampled_from([2, 3]),
    "attention_bias": st.booleans(),
    "mlp_bias": st.booleans(),
    "tie_word_embeddings": st.booleans(),
    "hidden_act": st.sampled_from(["gelu", "silu"]),
    "rms_norm_eps": st.sampled_from([1e-5, 1e-6]),
    "eos_token_id": st.sampled_from([None, 3, [3, 4]]),
    "num_experts": st.sampled_from([4, 8]),
    "num_local_experts": st.sampled_from([2, 6]),
    "num_experts_per_tok": st.just(2),
    "mlp_only_layers": st.sampled_from([None, [], [1]]),
    "query_pre_attn_scalar": st.sampled_from([64, 100]),
    "attn_logit_softcapping": st.sampled_from([None, 50.0]),
    "attention_multiplier": st.sampled_from([1, 0.25]),
    "architectures": st.just(["OwnForCausalLM"]),
}


def written(folder: Path, fields: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def check(folder: Path, fields: dict[str, Any]) -> None:
    """Compare every field that kvz has, to the kind of number; what transformers refuses is not compared."""
    written(folder, fields)
    try:
        theirs = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except Exception:
        assume(False)
    ours = read_config(folder)
    want, got = {}, {}
    for field in msgspec.structs.fields(ModelConfig):
        got[field.name], want[field.name] = getattr(ours, field.name), getattr(theirs, field.name, None)
        if want[field.name] is None and field.default not in (None, msgspec.NODEFAULT):
            want[field.name] = field.default  # of another family, and of no consequence
    assert json.dumps(got, sort_keys=True) == json.dumps(want, sort_keys=True)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_what_a_config_leaves_out(tmp_path, kind):
    check(tmp_path, {"model_type": kind})
    check(tmp_path, {"model_type": kind, **SMALL})
    everything = transformers.CONFIG_MAPPING[kind](**SMALL)
    check(tmp_path, {"model_type": kind, **everything.to_diff_dict()})
    check(tmp_path, json.loads(everything.to_json_string(use_diff=False)))


@pytest.mark.parametrize("kind", sorted(FAMILIES))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_fields_of_old_and_new_files(tmp_path, kind, data):
    """The fingerprint of a model is taken of these values, so it is the same too."""
    chosen = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=12, unique=True))
    fields = {name: data.draw(FIELDS[name], label=name) for name in chosen}
    if kind == "mistral":
        fields.pop("layer_types", None)  # another family, in transformers too
    elif not FAMILIES[kind].mixed_layers:
        ropes = [fields.get(name) or () for name in ("rope_parameters", "rope_scaling")]
        assume(not any("full_attention" in rope for rope in ropes))  # geometry_of refuses it
    check(tmp_path, {"model_type": kind, **SMALL, **fields})


def test_a_mistral_of_several_kinds_of_layers_is_of_another_family(tmp_path):
    with pytest.raises(UnsupportedModel, match="'ministral' is not supported"):
        read_config(written(tmp_path, {"model_type": "mistral", "layer_types": ["full_attention"]}))


@pytest.mark.parametrize("text", ["", "{", "[]", '"llama"', "\xff", "[" * 100_000], ids=repr)
def test_a_file_that_is_no_config(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": None}, "None is not supported"),
        ({"model_type": ["llama"]}, "is not supported"),
        ({"vocab_size": "many"}, "wrong value: .*vocab_size"),
        ({"vocab_size": None}, "wrong value: .*vocab_size"),
        ({"num_hidden_layers": True}, "wrong value: .*num_hidden_layers"),
        ({"num_attention_heads": 0}, "damaged"),
        ({"hidden_size": [64]}, "damaged"),
        ({"rope_parameters": "spiral"}, "damaged"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "damaged"),
        ({"model_type": "smollm3", "no_rope_layer_interval": None}, "damaged"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "per_layer_config .* kvz does not know"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_values_that_no_config_has(fields, message):
    with pytest.raises(ModelError, match=message):
        ModelConfig.from_fields({"model_type": "llama", **fields})


def test_a_rope_for_each_kind_of_layer_where_there_is_one_kind():
    rope = {"full_attention": {"rope_type": "linear", "factor": 8.0}}
    with pytest.raises(UnsupportedModel, match="go by kinds of layers, which llama has not"):
        geometry_of(ModelConfig.from_fields({"model_type": "llama", "rope_parameters": rope}))


def test_layers_that_do_not_add_up():
    config = {"model_type": "qwen2", "num_hidden_layers": 4, "layer_types": ["full_attention"] * 3}
    with pytest.raises(UnsupportedModel, match=r"4 layers .* 3 layer_types"):
        geometry_of(ModelConfig.from_fields(config))
