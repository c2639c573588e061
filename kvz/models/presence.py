"""Whether a model is on this machine, so that what only shows things need not fetch one."""

from __future__ import annotations

import os
from pathlib import Path

from kvz.models.embedded import EMBEDDED_ID, embedded_path
from kvz.models.weights import HUB_FILES, is_whole

__all__ = ["is_present"]


def is_present(name: str, revision: str | None = None) -> bool:
    """Whether `find_model` would find a model of this name without a network: a path, or whole in a cache."""
    if name == EMBEDDED_ID:
        return is_whole(embedded_path())
    if os.path.exists(os.path.expanduser(name)):
        return True
    from huggingface_hub import snapshot_download

    try:
        return is_whole(Path(snapshot_download(name, revision=revision, local_files_only=True, **HUB_FILES)))
    except Exception:  # no such snapshot, or no name that a hub model can have
        return False
