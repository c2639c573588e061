"""Fixtures that several tests share: tiny models, the embedded model, the examples."""

from __future__ import annotations

import json
import os
from pathlib import Path

if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "10000"  # as the command line does, before torch is loaded

import pytest
import torch

if not torch.cuda.is_available():  # Triton reads it when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kvz.errors import ModelError
from kvz.models.language_model import LanguageModel, load_model
from tests.skips import SkipCheck
from tests.tiny import make_model_folder

EXAMPLES = Path(__file__).parent.parent / "examples"
TEXT = (
    "The harbour office opens at seven. Mara Lindqvist keeps the ledger, and the ledger is blue.\n"
    "On Tuesdays the ferry to Skarholm leaves at noon; tickets cost four crowns. "
    "The spare key hangs behind the clock.\n"
)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipCheck())


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama: 3 layers, 6 query heads, 2 KV heads of 16."""
    return make_model_folder(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> LanguageModel:
    return load_model(str(tiny_folder), device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def embedded() -> LanguageModel:
    """The embedded model in float32; where it cannot be fetched, the test is skipped and the run fails."""
    try:
        return load_model(device="cpu", dtype="float32")
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "doc.txt"
    path.write_text(TEXT)
    return path


def example(name: str) -> tuple[str, list[dict[str, str]]]:
    """An example document's text and its questions."""
    questions = (EXAMPLES / f"{name}.questions.jsonl").read_text().splitlines()
    return (EXAMPLES / f"{name}.txt").read_text(), [json.loads(line) for line in questions]


torch.set_grad_enabled(False)
