"""kvz: compress a document's KV cache once, answer any number of questions from the archive later.

    archive = kvz.compress("report.txt", ratio=0.3)
    archive.save("report.kvz")
    print(kvz.load("report.kvz").ask("Who signed it?").text)

Names are loaded on first use, so that importing kvz (as the command line does) does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvz.errors import KvzError
from kvz.version import __version__

if TYPE_CHECKING:
    from kvz.archive import Archive, load
    from kvz.compression import compress
    from kvz.config import Decoding, Sampling
    from kvz.decode.conversation import Conversation
    from kvz.decode.sequence import Answer
    from kvz.decode.session import Session
    from kvz.models.language_model import LanguageModel, load_model

__all__ = [
    "Answer",
    "Archive",
    "Conversation",
    "Decoding",
    "KvzError",
    "LanguageModel",
    "Sampling",
    "Session",
    "__version__",
    "compress",
    "load",
    "load_model",
]

_HOMES = {
    "Answer": "kvz.decode.sequence",
    "Archive": "kvz.archive",
    "Conversation": "kvz.decode.conversation",
    "Decoding": "kvz.config",
    "LanguageModel": "kvz.models.language_model",
    "Sampling": "kvz.config",
    "Session": "kvz.decode.session",
    "compress": "kvz.compression",
    "load": "kvz.archive",
    "load_model": "kvz.models.language_model",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvz' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
