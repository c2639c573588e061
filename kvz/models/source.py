"""From what a user writes after -m to a folder with safetensors weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvz.errors import ModelError
from kvz.models.cache_folder import disk_problem
from kvz.models.embedded import EMBEDDED_ID, embedded_folder
from kvz.models.weights import HUB_FILES, check_folder, is_whole

__all__ = ["ModelSource", "check_model", "find_model"]

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_TEMPLATE, _TEMPLATE_FILE = "chat template", "chat_template.jinja"


@dataclass(frozen=True)
class ModelSource:
    """A model found: `id` as it goes into a manifest, and the `folder` its weights and tokenizer lie in."""

    id: str
    revision: str | None
    folder: Path


def find_model(name: str | Path | None, say: Callable[[str], None]) -> ModelSource:
    """Find a model by hub id (`org/name`, `org/name@revision`), folder or `.gguf` file; None is the embedded default.

    Fetches or converts what is not cached and tells `say` about it. Raises ModelError if there is no such model.
    """
    name = check_model(name)
    if name is None or name == EMBEDDED_ID:
        return ModelSource(EMBEDDED_ID, None, embedded_folder(say))
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelSource(str(path.resolve()), None, path.resolve())
    if path.is_file():
        from kvz.models.gguf import converted_folder

        return ModelSource(str(path.resolve()), None, converted_folder(path.resolve(), say))
    return _from_hub(name, say)


def check_model(name: str | Path | None) -> str | None:
    """The name of a model as text; raises ModelError for one that can be none, without a network and without torch."""
    name = None if name is None else os.fspath(name)
    if name is None or name == EMBEDDED_ID:
        return name
    if not name.strip():
        raise ModelError(f"the model's name is empty; leave -m out for {EMBEDDED_ID}")
    path = Path(name).expanduser()
    if problem := _path_problem(path):
        raise ModelError(f"no model '{name[:100]}': {problem}")
    if path.is_dir():
        check_folder(path.resolve())
        return name
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"no such model file: {name}")
        return name
    if path.is_file():
        raise ModelError(f"{name} is a file, but not a .gguf; give a folder, a .gguf file or a hub id like org/name")
    if _HUB_ID.fullmatch(name):
        return name
    raise ModelError(
        f"no model '{name}': there is no such folder or file; a model is a hub id like org/name, a folder or a "
        ".gguf file"
    )


def _path_problem(path: Path) -> str | None:
    """Why a path cannot even be looked at, or None; that nothing is there is no problem here."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return str(error.strerror)
    except ValueError:
        return "that is no name a model can have"
    return None


def _from_hub(name: str, say: Callable[[str], None]) -> ModelSource:
    """Find or fetch a hub's model. What its repository has and the cache lacks is fetched, or named if it cannot be."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo, _, revision = name.partition("@")
    lacking = None
    try:
        folder = Path(
            _told(name, lambda: snapshot_download(repo, revision=revision or None, local_files_only=True, **HUB_FILES))
        )
        if is_whole(folder):
            if (lacking := _lacking(repo, folder)) is None:
                return ModelSource(repo, folder.name, check_folder(folder))
            revision = folder.name
    except LocalEntryNotFoundError:
        pass
    say(f"fetching {name} from the hub" if lacking is None else f"asking the hub for the {lacking} of {name}")
    try:
        folder = Path(_told(name, lambda: snapshot_download(repo, revision=revision or None, **HUB_FILES)))
    except (ModelError, LocalEntryNotFoundError) as error:
        if lacking != _TEMPLATE:
            without = "" if lacking is None else f"; its copy in the cache has no {lacking}"
            raise ModelError(f"{_unfetched(name, error)}{without}") from error
        say(f"the hub cannot be asked whether {name} has a {lacking}; going on without one")
    else:
        _note_absent(repo, folder)
    return ModelSource(repo, folder.name, check_folder(folder))


def _told(name: str, fetch: Callable[[], str]) -> str:
    """What `fetch` returns; LocalEntryNotFoundError and ModelError, in words of ours, come through."""
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return fetch()
    except LocalEntryNotFoundError:
        raise
    except RepositoryNotFoundError as error:
        repo = name.partition("@")[0]
        raise ModelError(f"no model '{repo}' on the hub, or it needs a login: check the name") from error
    except Exception as error:  # the hub's HTTP library has its own connection errors
        raise ModelError(_unfetched(name, error)) from error


def _unfetched(name: str, error: Exception) -> str:
    """Why a model could not be fetched: the disk's fault is told as that, anything else may be the network's."""
    if isinstance(error, ModelError):
        return str(error)
    if problem := disk_problem(error):
        return f"cannot store '{name}' in the hub's cache: {problem}; make room, or set HF_HOME to another folder"
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"cannot fetch '{name}' from the hub ({reason[:300]}); no network? Use -m FOLDER"


def _lacking(repo: str, folder: Path) -> str | None:
    """What a repository may have and its snapshot in the cache lacks, or None."""
    if not any((folder / file).is_file() for file in _TOKENIZERS):
        return "tokenizer"
    if not (folder / "tokenizer_config.json").is_file() and not _known_absent(repo, folder, "tokenizer_config.json"):
        return _TEMPLATE
    try:
        has_template = bool(json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        has_template = False
    if has_template or (folder / _TEMPLATE_FILE).is_file() or _known_absent(repo, folder, _TEMPLATE_FILE):
        return None
    return _TEMPLATE


def _known_absent(repo: str, folder: Path, file: str) -> bool:
    """Whether the hub has said that the repository has no such file."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, file, revision=folder.name)
    return found is not None and not isinstance(found, str)


def _note_absent(repo: str, folder: Path) -> None:
    """Ask the hub for what is still not there; its library remembers an answer that there is none."""
    from huggingface_hub import hf_hub_download

    for file in ("tokenizer_config.json", _TEMPLATE_FILE):
        if not (folder / file).is_file() and not _known_absent(repo, folder, file):
            with suppress(Exception):  # the next time asks again
                hf_hub_download(repo, file, revision=folder.name)
