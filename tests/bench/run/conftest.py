"""Running kvz bench in this process, on a small model and one small task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvz.cli import main
from tests.cli.harness import Outcome
from tests.tiny import make_model_folder

Run = Callable[..., Outcome]
METHODS = "snapkv@0.3,rocketkv@32,kvzip@0.5/lowbit@16,quest@900,duo@0.5"
TIMES = ("seconds", "peak_bytes", "floor_seconds")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own."""
    return tmp_path_factory.mktemp("kvz-cache")


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[None]:
    """One thread, no network, and a probe of memory that is quick."""
    monkeypatch.setenv("KVZ_CACHE", str(cache))
    monkeypatch.setattr("kvz.bench.environment._PROBE", 1 << 20)
    monkeypatch.setattr("kvz.bench.environment._SECONDS", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("bench-model"), layers=2, max_position_embeddings=1000)


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], calm: None) -> Run:
    def run_bench(*arguments: object) -> Outcome:
        capfdbinary.readouterr()
        status = main.run(["bench", *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return Outcome(status, out, err.decode())

    return run_bench


@pytest.fixture
def line(folder: Path, tmp_path: Path) -> list[str]:
    """A small run of one task."""
    return ["--task", "needle", "--method", METHODS, "--length", "300", "--samples", "3", "--dtype", "float32",
            "-m", str(folder), "--out", str(tmp_path / "run")]  # fmt: skip


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]
