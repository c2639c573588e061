"""What a tokenizer is made of: the `tokenizers` library's own object, its special tokens, a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvz.errors import ModelError

__all__ = ["TokenizerParts"]


@dataclass(frozen=True, eq=False)
class TokenizerParts:
    """`backend` encodes and decodes; `named` are special tokens as templates know them; `special`, all of them."""

    backend: Any
    named: Mapping[str, str]
    special: frozenset[str]
    template: str | None

    @classmethod
    def from_transformers(cls, tokenizer: Any) -> TokenizerParts:
        """Of a tokenizer of transformers. Raises ModelError for one that has no object of `tokenizers`."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(f"a {type(tokenizer).__name__} has no tokenizer.json; convert it to one")
        template = tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        return cls(backend, tokenizer.special_tokens_map, frozenset(tokenizer.all_special_tokens), template or None)
