"""Kernels compiled for older processors, run on this one: the same results, from machine code of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

OLDER = {
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "NUMBA_CPU_NAME": "haswell"},
    "SSE": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "NUMBA_CPU_NAME": "nehalem"},
}
SCRIPT = """
import torch
from kvz.kernels.cpu.ragged_step import RaggedStep
from kvz.kernels.decode_step import is_to_be_compiled
from kvz.kernels.linear import fast_bfloat16, linear
from tests.kernels.cpu.test_steps import Step
from tests.near import assert_near

print(torch.backends.cpu.get_cpu_capability(), fast_bfloat16())
assert is_to_be_compiled(torch.device("cpu"), "dense", torch.float16, 3)
for dtype in (torch.bfloat16, torch.float16):
    step = Step.make([300, 0, 65], [9], dtype=dtype)
    made = RaggedStep.of(step.keys, step.values, step.bounds, 2)
    assert_near(made.attend(step.query, step.scale, step.tails), step.expected({}), step.terms)
    weight = torch.randn(40, 96).to(dtype)
    for rows in (torch.randn(3, 96), torch.randn(40, 96)):
        assert_near(linear(rows, weight), rows.double() @ weight.double().T, 96, floor=10)
every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
every = every[every.isfinite()][:, None]
assert torch.equal(linear(torch.ones(1, 1), every)[0], every[:, 0].float())
assert not is_to_be_compiled(torch.device("cpu"), "dense", torch.float16, 3)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="not an x86 processor")
def test_older_processors_have_the_same_results_and_code_of_their_own(tmp_path: Path) -> None:
    for name, settings in OLDER.items():
        environment = {**os.environ, **settings, "NUMBA_CPU_FEATURES": "", "KVZ_CACHE": str(tmp_path)}
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{name}: {ran.stderr}"
        assert ran.stdout.split() == [settings["ATEN_CPU_CAPABILITY"].upper(), "False"]
    assert len(list((tmp_path / "kernels").iterdir())) == len(OLDER)
