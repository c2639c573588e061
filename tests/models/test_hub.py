"""Models of the hub: what a cache lacks is fetched or named, and why it cannot be is told as it is."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from kvz.errors import ModelError
from kvz.models.presence import is_present
from kvz.models.source import find_model
from tests.tiny import make_model_folder

COMMIT = "a" * 40


@dataclass
class Hub:
    """Stands in for the hub: `files` is what its repository has, `cached` its snapshot on this machine."""

    files: Path
    cached: Path
    fails: Exception | None = None
    listed: bool = False  # whether the library remembers what the repository has
    asked: list[str] = field(default_factory=list)

    def snapshot_download(self, repo: str, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only:
            wanted = filter_repo_objects(
                (path.name for path in self.files.iterdir()), allow_patterns=options.get("allow_patterns")
            )
            if not self.cached.is_dir() or (self.listed and any(not (self.cached / f).exists() for f in wanted)):
                raise LocalEntryNotFoundError("not all of it is cached")
            return str(self.cached)
        self.asked.append(repo)
        if self.fails is not None:
            raise self.fails
        shutil.copytree(self.files, self.cached, dirs_exist_ok=True)
        return str(self.cached)

    def hf_hub_download(self, repo: str, file: str, revision: str) -> str:
        """As the library does, note that a file is not there."""
        note = self.cached.parent.parent / ".no_exist" / revision / file
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        raise OSError("404")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A repository with everything, and its whole snapshot."""
    files = make_model_folder(tmp_path / "files")
    cached = tmp_path / "hub" / "models--org--name" / "snapshots" / COMMIT
    shutil.copytree(files, cached)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    fake = Hub(files, cached)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake.snapshot_download)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fake.hf_hub_download)
    return fake


def test_a_whole_snapshot_is_used_without_asking(hub):
    assert find_model("org/name", lambda line: None).folder == hub.cached
    assert hub.asked == []


def test_files_of_a_repository_that_kvz_does_not_want_are_not_missed(hub):
    """The hub's library remembers what a repository has: its read-me and pickled weights are not fetched."""
    (hub.files / "README.md").touch()
    (hub.files / "pytorch_model.bin").touch()
    hub.listed = True
    assert find_model("org/name", lambda line: None).folder == hub.cached
    assert is_present("org/name")
    assert hub.asked == []


@pytest.mark.parametrize(("file", "what"), [("chat_template.jinja", "chat template"), ("tokenizer.json", "tokenizer")])
def test_what_the_cache_lacks_is_fetched(hub, file, what):
    (hub.cached / file).unlink()
    said: list[str] = []
    source = find_model("org/name", said.append)
    assert (source.folder / file).is_file()
    assert source.revision == COMMIT
    assert said == [f"asking the hub for the {what} of org/name"]


def test_a_model_without_a_chat_template_is_asked_about_once(hub):
    for folder in (hub.files, hub.cached):
        (folder / "chat_template.jinja").unlink()
    for _ in range(2):
        assert find_model("org/name", lambda line: None).folder == hub.cached
    assert hub.asked == ["org/name"]


def test_a_template_that_cannot_be_asked_for_is_named(hub):
    (hub.cached / "chat_template.jinja").unlink()
    hub.fails = LocalEntryNotFoundError("offline")
    said: list[str] = []
    assert find_model("org/name", said.append).folder == hub.cached
    assert said[-1] == "the hub cannot be asked whether org/name has a chat template; going on without one"


def test_a_tokenizer_that_cannot_be_fetched_is_named(hub):
    (hub.cached / "tokenizer.json").unlink()
    hub.fails = ConnectionError("offline")
    with pytest.raises(ModelError, match=r"org/name.*no network\?.* its copy in the cache has no tokenizer"):
        find_model("org/name", lambda line: None)


def full(wrap: Callable[[OSError], Exception]) -> Exception:
    return wrap(OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize(
    "error",
    [
        full(lambda error: error),
        full(lambda error: RuntimeError(f"Data processing error: {error} (os error 28)")),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        PermissionError(errno.EACCES, "Permission denied", "/hub"),
    ],
)
def test_a_disk_that_refuses_is_not_called_a_network(hub, error):
    shutil.rmtree(hub.cached)
    hub.fails = error
    with pytest.raises(ModelError, match=r"cannot store 'org/name'.*(No space|quota|denied).*HF_HOME") as caught:
        find_model("org/name", lambda line: None)
    assert "network" not in str(caught.value)
