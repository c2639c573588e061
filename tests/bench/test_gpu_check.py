"""scripts/gpu-check runs to its end on a tiny model without a GPU, and needs no package that a GPU machine may lack."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvz.bench.gpu.__main__ import SECTIONS, main
from kvz.bench.gpu.models import GEOMETRIES, random_lengths, random_model

OURS = ("gguf", "matplotlib", "msgspec", "platformdirs", "rich", "typer", "xxhash")
NEEDED = "import sys; import kvz.bench.gpu.__main__; print(sorted(set(sys.modules) & set(sys.argv[1:])))"


def test_sections_print_as_they_end_and_leave_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.json"
    options = ["--device", "cpu", "--model", "tiny", "--tokens", "512", "--questions", "2", "--json", str(path)]
    assert main([*options, "--sections", "smallest,decode,kernels,loading"]) == 0
    result = json.loads(path.read_text())
    assert "errors" not in result
    ways = {(row["way"], row["batch"]) for row in result["sections"]["decode"]}
    assert {("full KV, GQA-aware", 1), ("r = 0.3, dense", 2), ("r = 0.3, lowbit@256", 2)} <= ways
    assert all(row["passed"] for row in result["sections"]["smallest"])
    out = capsys.readouterr().out
    assert out.index("-- smallest ended") < out.index("-- decode ended") < out.index("-- loading ended")
    assert "times_full" in out


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs one for C++ on a CPU")
def test_a_section_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> object:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(SECTIONS, "parity", broken)
    path = tmp_path / "gpu.json"
    options = ["--device", "cpu", "--model", "tiny", "--tokens", "512", "--json", str(path)]
    assert main([*options, "--sections", "parity,loading"]) == 1
    result = json.loads(path.read_text())
    assert result["errors"] == {"parity": "RuntimeError: no such kernel"}
    assert len(result["sections"]["loading"]) == 2


def test_it_needs_torch_triton_and_transformers_alone() -> None:
    run = subprocess.run([sys.executable, "-c", NEEDED, *OURS], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_random_archives_keep_what_they_are_to_keep() -> None:
    lengths = random_lengths(8, 96000, 0.3)
    assert sum(lengths) == round(0.3 * 8 * 96000)
    assert all(0 < length <= 96000 for length in lengths)
    assert max(lengths) > 10 * min(lengths)
    assert random_lengths(4, 100, 1.0) == [100] * 4


@pytest.mark.parametrize("name", GEOMETRIES)
def test_models_are_of_their_own_family(name: str) -> None:
    small = replace(GEOMETRIES[name], layers=1, hidden=64, query_heads=4, kv_heads=2, intermediate=64, vocabulary=99)
    model = random_model(small, torch.float32, torch.device("cpu"))
    weights = model.decoder.weights.blocks[0]
    assert (weights.qkv_bias is not None) == (name == "qwen2.5-7b")
    assert model.decoder.architecture.blocks[0].head_dim == small.head_dim
    assert weights.qkv.shape == (8 * small.head_dim, 64)
