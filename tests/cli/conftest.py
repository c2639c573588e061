"""Running the command line in this process, and archives and models for it to work on."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import kvz
from kvz.cli import main
from kvz.models.language_model import LanguageModel
from tests.cli.harness import Outcome
from tests.conftest import TEXT
from tests.tiny import CHAT_TEMPLATE, make_model_folder

Run = Callable[..., Outcome]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Models this small are slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the network or the user's own cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("KVZ_CACHE", str(tmp_path / "kvz-cache"))


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("ask", archive, ..., stdin=b"...")`: the command line, in this process."""

    def run_main(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capfdbinary.readouterr()
        status = main.run([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Outcome(status, out, err.decode())

    return run_main


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty folder for outputs."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def compress(run: Run, tiny_folder: Path, out: Path) -> Run:
    """`compress(DOC, ...)` with the tiny model, to out/a.kvz unless told otherwise."""

    def run_compress(document: object, *options: object, stdin: bytes = b"", model: Path = tiny_folder) -> Outcome:
        target = [] if "-o" in options else ["-o", out / "a.kvz"]
        return run("compress", document, "-m", model, "--dtype", "float32", *target, *options, stdin=stdin)

    return run_compress


@pytest.fixture(scope="session")
def archive(tiny: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of TEXT, made with the tiny model. Not to be changed."""
    path = tmp_path_factory.mktemp("archive") / "text.kvz"
    kvz.compress(TEXT, tiny, ratio=0.4).save(path)
    return path


@pytest.fixture(scope="session")
def short_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with only 256 positions."""
    return make_model_folder(tmp_path_factory.mktemp("short"), max_position_embeddings=256)


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's architecture and tokenizer with weights of its own."""
    return make_model_folder(tmp_path_factory.mktemp("weights"), seed=1)


@pytest.fixture(scope="session")
def other_tokenizer(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with two tokens of its vocabulary exchanged."""
    folder = tmp_path_factory.mktemp("tokenizer") / "model"
    shutil.copytree(tiny_folder, folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = spec["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder


@pytest.fixture(scope="session")
def other_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a chat template that ends differently."""
    template = CHAT_TEMPLATE.replace("assistant\n", "assistant:\n")
    return make_model_folder(tmp_path_factory.mktemp("template"), template=template)
