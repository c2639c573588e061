"""Scaled position embeddings and per-layer geometry: what is kept is what transformers computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from kvz.compression import compress
from kvz.geometry import Geometry, LayerShape
from kvz.models.checkpoint import random_weights
from kvz.models.decoder import Decoder
from kvz.models.language_model import LanguageModel, load_model
from kvz.prompt import make_frame, question_ids
from tests.conftest import TEXT
from tests.tiny import make_model_folder

SCALED: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3.1": (
        "llama",
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
            "rope_theta": 500000.0,
        },
    ),
    "Qwen2.5 long context": (
        "qwen2",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1000000.0},
    ),
    "linear": ("llama", {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
}


@pytest.mark.parametrize("name", SCALED)
def test_scaled_rope_answers_as_transformers_does(tmp_path, name):
    family, rope = SCALED[name]
    folder = make_model_folder(tmp_path / "scaled", family, rope_parameters=rope)
    model = load_model(str(folder), "cpu", "float32")
    answer = compress(TEXT * 2, model, ratio=1.0).ask("Where does the key hang?", 30)
    network = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    frame = make_frame(model.tokenizer, model.end_ids)
    ids = [*frame.prefix_ids, *model.tokenizer.encode_plain(TEXT * 2)]
    ids += question_ids(model.tokenizer, frame.seam, "Where does the key hang?")
    out = network.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False)[0, len(ids) :].tolist()
    assert list(answer.ids) == out[: len(answer.ids)]
    assert answer.new_tokens > 0
    plain = load_model(str(make_model_folder(tmp_path / "plain", family)), "cpu", "float32")
    assert plain.identity.fingerprints.model != model.identity.fingerprints.model


def with_heads_of_their_own(model: LanguageModel, kv_heads: tuple[int, ...]) -> LanguageModel:
    """The model with another number of KV heads in each layer, as models found by architecture search have."""
    blocks = tuple(replace(b, kv_heads=n) for b, n in zip(model.decoder.architecture.blocks, kv_heads, strict=True))
    facts = replace(model.decoder.architecture, blocks=blocks)
    weights = random_weights(facts, torch.float32, torch.device("cpu"))
    geometry = Geometry(6, tuple(LayerShape(heads, 16) for heads in kv_heads), 4096)
    identity = replace(model.identity, geometry=geometry)
    return replace(model, identity=identity, decoder=Decoder(facts, weights, torch.float32))


@pytest.mark.parametrize("method", ["kvzip", "kvzip+", "kvzip-rms", "snapkv", "pyramidkv", "adakv", "h2o"])
def test_layers_may_differ_in_their_heads(tmp_path, method):
    model = with_heads_of_their_own(load_model(str(make_model_folder(tmp_path)), "cpu", "float32"), (1, 3, 6))
    archive = compress(TEXT, model, ratio=0.5, method=method)
    kept = archive.manifest.compression.kept
    assert [len(row) for row in kept] == [1, 3, 6]
    assert archive.manifest.compression.pairs_total == 10 * archive.manifest.prompt.context_tokens
    archive.save(tmp_path / "a.kvz")
    whole = compress(TEXT, model, ratio=1.0)
    assert whole.ask("Who?", 8).new_tokens > 0
    assert archive.ask("Who?", 8).ids == compress(TEXT, model, ratio=0.5, method=method).ask("Who?", 8).ids
