"""From what a user writes after -m to a folder with safetensors weights."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvz.errors import ModelError
from kvz.models.embedded import EMBEDDED_ID, embedded_folder
from kvz.models.gguf import converted_folder
from kvz.models.weights import check_folder, is_whole

__all__ = ["ModelSource", "find_model"]

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
_HUB_FILES = ["model*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
_NOT_HUB_FILES = ["*/*"]  # subfolders hold the same weights for other programs


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
    name = None if name is None else os.fspath(name)
    if name is None or name == EMBEDDED_ID:
        return ModelSource(EMBEDDED_ID, None, embedded_folder(say))
    if not name.strip():
        raise ModelError(f"the model's name is empty; leave -m out for {EMBEDDED_ID}")
    path = Path(name).expanduser()
    if problem := _path_problem(path):
        raise ModelError(f"no model '{name[:100]}': {problem}")
    if path.is_dir():
        return ModelSource(str(path.resolve()), None, check_folder(path.resolve()))
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"no such model file: {name}")
        return ModelSource(str(path.resolve()), None, converted_folder(path.resolve(), say))
    if path.is_file():
        raise ModelError(f"{name} is a file, but not a .gguf; give a folder, a .gguf file or a hub id like org/name")
    if _HUB_ID.fullmatch(name):
        return _from_hub(name, say)
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
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    repo, _, revision = name.partition("@")
    try:
        try:
            folder = snapshot_download(repo, revision=revision or None, local_files_only=True)
            if is_whole(Path(folder)):
                return ModelSource(repo, Path(folder).name, check_folder(Path(folder)))
        except LocalEntryNotFoundError:
            pass
        say(f"fetching {name} from the hub")
        folder = snapshot_download(
            repo, revision=revision or None, allow_patterns=_HUB_FILES, ignore_patterns=_NOT_HUB_FILES
        )
    except RepositoryNotFoundError as error:
        raise ModelError(f"no model '{repo}' on the hub, or it needs a login: check the name") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"cannot fetch '{name}' from the hub ({reason[:160]}); no network? Use -m FOLDER") from error
    except Exception as error:  # the hub's HTTP library has its own connection errors
        raise ModelError(f"cannot fetch '{name}' from the hub: {type(error).__name__}; no network?") from error
    return ModelSource(repo, Path(folder).name, check_folder(Path(folder)))
