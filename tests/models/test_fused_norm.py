"""Fused norms take the place of every norm of every family, and change no answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kvz.compression import compress
from kvz.kernels import rms_norm
from kvz.kernels.triton.rms_norm import launch_rms_norm
from kvz.models.fused_norm import FusedNorm, fuse_norms
from kvz.models.language_model import load_model
from tests.conftest import TEXT
from tests.tiny import FAMILIES, make_model_folder


def norms(network: nn.Module) -> Counter[str]:
    return Counter(type(m).__name__ for m in network.modules() if "Norm" in type(m).__name__)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_norm_is_replaced_and_the_answers_stay(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(make_model_folder(tmp_path, family)), "cpu", "float32")
    plain = compress(TEXT, model, ratio=0.6, method="kvzip+")
    wanted = plain.ask("Where is the key?", 12).ids
    before = norms(model.network)
    assert sum(before.values()) >= 7
    assert fuse_norms(model.network) == sum(before.values())
    assert norms(model.network) == {"FusedNorm": sum(before.values())}
    assert compress(TEXT, model, ratio=0.6, method="kvzip+").ask("Where is the key?", 12).ids == wanted
    monkeypatch.setattr(rms_norm, "plain_rms_norm", launch_rms_norm)
    assert plain.ask("Where is the key?", 12).ids == wanted


def test_a_norm_that_does_something_else_is_left() -> None:
    class OtherRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, rows: Tensor) -> Tensor:
            return rows * 2

    network = nn.Sequential(OtherRMSNorm(), nn.LayerNorm(8))
    assert fuse_norms(network) == 0
    assert not any(isinstance(m, FusedNorm) for m in network)
