from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvz.cache.full import FullCache
from kvz.models.language_model import load_model
from kvz.models.prefill import prefill
from tests.near import NETWORK, assert_near, forward_terms
from tests.tiny import FAMILIES, GEMMA_WINDOW, make_model_folder

IDS = torch.randint(3, 250, (301,), generator=torch.Generator().manual_seed(5)).tolist()


def double(folder: Path) -> Any:
    """transformers' model in float64."""
    options: dict[str, Any] = {"dtype": torch.float64, "experts_implementation": "eager"}  # its others lack float64
    return transformers.AutoModelForCausalLM.from_pretrained(str(folder), **options).eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [2048, 100, 37])
def test_prefilled_cache_equals_transformers(tmp_path, family, chunk):
    folder = make_model_folder(tmp_path, family)
    model = load_model(str(folder), "cpu", "float32")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float64, experts_implementation="eager"
    ).eval()
    out = reference(torch.tensor([IDS]), use_cache=True)
    want = out.cache if hasattr(out, "cache") else out.past_key_values
    told: list[int] = []
    got = prefill(model, IDS, chunk, told.append)
    assert got.length == sum(told) == len(IDS)
    terms = forward_terms(model.identity.config, len(IDS))
    for layer in range(model.geometry.layers):
        sliding = got.sliding(layer)
        keys, values = got.layer(layer) if sliding is None else (sliding.keys, sliding.values)
        held = keys.shape[1]
        assert held == (301 if sliding is None else GEMMA_WINDOW - 1)
        assert_near(keys, want.layers[layer].keys[0, :, -held:], terms, size=NETWORK)
        assert_near(values, want.layers[layer].values[0, :, -held:], terms, size=NETWORK)


@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_tokens_over_a_prefix_equal_a_plain_forward(tmp_path, family):
    """A mask of the wrong size would show here, and not with single tokens."""
    folder = make_model_folder(tmp_path, family)
    model = load_model(str(folder), "cpu", "float32")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float64, experts_implementation="eager"
    ).eval()
    cache = FullCache(model.geometry.shapes, 301, model.dtype, model.device)
    model.fill(torch.tensor(IDS[:281]), 0, cache)
    cache.advance(281)
    got = model.logits(torch.tensor(IDS[281:]), 281, cache)
    want = reference(torch.tensor([IDS])).logits[0, -1]
    assert_near(got, want, forward_terms(model.identity.config, len(IDS)), size=NETWORK)
