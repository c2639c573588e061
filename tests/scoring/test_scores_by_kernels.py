"""Scoring passes with the kernels that GPUs have, interpreted: the same scores as by the plain forms."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from kvz.kernels import attention_sum, kvzip_score
from kvz.scoring.h2o import H2O
from kvz.scoring.kvzip import KVzip
from kvz.scoring.kvzip_plus import KVzipPlus
from kvz.scoring.kvzip_rms import KVzipRMS
from kvz.scoring.snapkv import SnapKV
from tests.near import assert_shares_near
from tests.scoring.test_kvzip import context_of

METHODS = [KVzip(64), KVzip(64, weight="logit"), KVzipPlus(64), KVzipRMS(64), SnapKV(window=16), H2O()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are not interpreted where there is a GPU")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_kernels_score_as_the_plain_forms_do(tiny, monkeypatch, method):
    context = context_of(tiny, 100)
    want = method.score(tiny, context, lambda tokens: None)
    seen: list[torch.Size] = []

    def taken(query: torch.Tensor) -> bool:
        seen.append(query.shape)
        return True

    for module in (kvzip_score, attention_sum):
        monkeypatch.setattr(module, "takes_triton", taken)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    got = method.score(tiny, context, lambda tokens: None)
    assert_shares_near(got, want, tiny.identity.config, 100)
    assert {tuple(shape[:2]) for shape in seen} == {(2, 3)}  # all KV heads of a layer, each with its group
