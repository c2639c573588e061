"""Which files of a model folder hold its weights."""

from __future__ import annotations

import json
from pathlib import Path

from kvz.errors import ModelError

__all__ = ["HUB_FILES", "check_folder", "is_whole", "weight_files"]

_INDEX = "model.safetensors.index.json"
HUB_FILES: dict[str, list[str]] = {
    "allow_patterns": ["model*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"],
    "ignore_patterns": ["*/*"],  # subfolders hold the same weights for other programs
}
"""What kvz wants of a hub's repository; a snapshot is whole if it has these."""

_SINGLE = "model.safetensors"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model: those its index lists, or the one there is without an index.

    Other safetensors files in the folder (adapters, the same weights in another layout) are not part of it. Raises
    ModelError if the index cannot be read.
    """
    index = folder / _INDEX
    if not index.is_file():
        return [folder / _SINGLE]
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
        return [folder / name for name in sorted(names)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not an index of weights; fetch the model again") from error


def is_whole(folder: Path) -> bool:
    """Whether config and all weights are there: an interrupted download leaves a folder that is not."""
    try:
        return (folder / "config.json").is_file() and all(path.is_file() for path in weight_files(folder))
    except ModelError:
        return False


def check_folder(folder: Path) -> Path:
    """Return `folder` if it holds a whole model; raises ModelError that says what it lacks."""
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f"give the file itself: {ggufs[0]}" if ggufs else "give the folder that holds it"
        raise ModelError(f"{folder} has no config.json, so it is not a model folder; {hint}")
    missing = [path.name for path in weight_files(folder) if not path.is_file()]
    if missing == [_SINGLE]:
        raise ModelError(f"{folder} has no *.safetensors weights (pickled weights are never loaded)")
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} files of weights, {missing[0]} first; copy or fetch it again")
    return folder
