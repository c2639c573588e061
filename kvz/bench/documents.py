"""Text of any length to measure on, out of the example documents."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from kvz.errors import UsageError

if TYPE_CHECKING:
    from kvz.models.language_model import LanguageModel

__all__ = ["EXAMPLES", "text_of"]


def _examples() -> Path:
    """Their folder: in the package where it is installed, beside it in a checkout."""
    package = Path(str(files("kvz")))
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "examples"


EXAMPLES = _examples()


def text_of(model: LanguageModel, tokens: int) -> str:
    """Text of `tokens` tokens (a few more or less) from the example documents, repeated if they are too short."""
    if not any(EXAMPLES.glob("*.txt")):
        raise UsageError(f"no example documents in {EXAMPLES}; install kvz anew, or run this in a clone of it")
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.txt")))
    ids = model.tokenizer.encode_plain(text)
    while len(ids) < tokens:
        ids += ids
    return model.tokenizer.decode(ids[:tokens])
