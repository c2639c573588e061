"""kvz models: the embedded model and what is cached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvz import wording
from kvz.cli import console
from kvz.cli.options import JsonOption, QuietOption

__all__ = ["models"]


def models(
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Fetch the embedded model now, for use without network.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """List the models that can be used without fetching anything: embedded, converted from GGUF, and from the hub."""
    from kvz.models.embedded import embedded_folder

    if fetch:
        embedded_folder(console.terminal_progress(quiet).say)
    for row in [_embedded(), *_converted(), *_hub()]:
        if as_json:
            console.emit_json(row)
        else:
            held = wording.size(row["bytes"]) if row["cached"] else "not fetched yet (kvz models --fetch), will be in"
            console.emit(f"{row['model']}  [{row['kind']}]  {held}  {row['folder']}")


def _embedded() -> dict[str, Any]:
    from kvz.models.cache_folder import is_complete
    from kvz.models.embedded import EMBEDDED_ID, embedded_path

    path = embedded_path()
    cached = is_complete(path)
    return _row(EMBEDDED_ID, "embedded default", path, cached)


def _converted() -> list[dict[str, Any]]:
    from kvz.models.cache_folder import cache_folder, is_complete

    try:
        folders = sorted(path for path in (cache_folder() / "gguf").glob("*") if path.is_dir() and is_complete(path))
    except OSError:  # out of reach
        return []
    return [_row(path.name.rpartition("-")[0], "gguf", path, True) for path in folders]


def _hub() -> list[dict[str, Any]]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]
    except (CacheNotFound, OSError, ValueError):
        return []
    usable = [repo for repo in repos if any(_usable(Path(r.snapshot_path)) for r in repo.revisions)]
    return [_row(repo.repo_id, "hub", Path(repo.repo_path), True) for repo in sorted(usable, key=lambda r: r.repo_id)]


def _usable(snapshot: Path) -> bool:
    """Whether a snapshot is whole and of an architecture that kvz knows."""
    from kvz.models.families import FAMILIES
    from kvz.models.weights import is_whole

    try:
        return is_whole(snapshot) and json.loads((snapshot / "config.json").read_text())["model_type"] in FAMILIES
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _row(model: str, kind: str, folder: Path, cached: bool) -> dict[str, Any]:
    nbytes = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()) if cached else 0
    return {"model": model, "kind": kind, "cached": cached, "bytes": nbytes, "folder": str(folder)}
