"""Packed layers give what the layers they replace give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from kvz.models.language_model import load_model
from kvz.models.packed_linear import PackedLinear, can_pack, pack_linears
from tests.tiny import FAMILIES, make_model_folder

CPU = torch.device("cpu")
packs = pytest.mark.skipif(not can_pack(torch.bfloat16, CPU), reason="this CPU packs no bfloat16 weights")


@packs
@pytest.mark.parametrize("rows", [1, 2, 17, 300])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_float64_up_to_bfloat16(rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    linear = nn.Linear(96, 40, bias=bias).bfloat16()
    packed, x = PackedLinear(linear), torch.randn(2, rows, 96).bfloat16()
    want = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    torch.testing.assert_close(packed(x).double(), want, rtol=2**-7, atol=2**-7)
    assert torch.equal(packed.weight, linear.weight)
    assert packed(x).shape == (2, rows, 40)


@packs
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_model_is_transformers_model_in_bfloat16(tmp_path: Path, family: str) -> None:
    folder = make_model_folder(tmp_path, family)
    ours = load_model(str(folder), "cpu", "bfloat16").network
    assert not any(type(module) is nn.Linear for module in ours.modules())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    packed = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    pack_linears(packed)
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        torch.testing.assert_close(packed(ids).logits, theirs(ids).logits, rtol=0, atol=0.05)


def test_other_dtypes_and_devices_are_left_alone(tmp_path: Path) -> None:
    assert not can_pack(torch.float32, CPU)
    assert not can_pack(torch.bfloat16, torch.device("cuda"))
    model = load_model(str(make_model_folder(tmp_path)), "cpu", "float32")
    assert any(type(module) is nn.Linear for module in model.network.modules())
