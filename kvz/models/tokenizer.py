"""A model's tokenizer, with text that may hold control tokens kept apart from text that must not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from kvz.errors import ModelError
from kvz.models.quiet import first_line, quiet_transformers

__all__ = ["Tokenizer"]


class Tokenizer:
    """Encodes template text (control tokens are control) and plain text (they are not), and decodes answers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load from a model folder; raises ModelError if there is none that works."""
        from transformers import AutoTokenizer

        try:
            with quiet_transformers():
                return cls(AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False))
        except Exception as error:
            raise ModelError(f"cannot load the tokenizer in {folder}: {first_line(error)}") from error

    @property
    def template(self) -> str | None:
        """The chat template, or None. Of several named ones, the default."""
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        return template or None

    @property
    def begin_ids(self) -> list[int]:
        """The begin-of-text token where the tokenizer puts one before a text, else nothing."""
        empty = self._tokenizer("", add_special_tokens=True)["input_ids"]
        bos = self._tokenizer.bos_token_id
        return [bos] if bos is not None and bos in empty else []

    @property
    def end_id(self) -> int | None:
        """The tokenizer's end-of-text token."""
        end = self._tokenizer.eos_token_id
        return None if end is None else int(end)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids that plain text must never become: special tokens, and every added token that is not mere white space."""
        added = {int(i) for i, token in self._tokenizer.added_tokens_decoder.items() if str(token).strip()}
        return frozenset(added | set(self._tokenizer.all_special_ids))

    def render(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool) -> str:
        """The chat template's text for `messages`; whatever the template raises comes through."""
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
        )
        assert isinstance(text, str)
        return text

    def encode_template(self, text: str) -> list[int]:
        """Ids of text written by a chat template: its control tokens become control."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_plain(self, text: str) -> list[int]:
        """Ids of text written by a user: what looks like a control token is spelled out in ordinary tokens.

        Raises ModelError if this tokenizer cannot spell it out.
        """
        with quiet_transformers():  # it warns of lengths that are none of its business here
            ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if self.control_ids.isdisjoint(ids):
            return ids
        ids = self._spelling_backend.encode(text, add_special_tokens=False).ids if self._spelling_backend else ids
        if not self.control_ids.isdisjoint(ids):
            token = self._tokenizer.decode([next(i for i in ids if i in self.control_ids)])
            raise ModelError(f"the text contains the control token '{token}' and this tokenizer cannot spell it out")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, control tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Every token and its id, added ones included."""
        return dict(self._tokenizer.get_vocab())

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters is n / this many tokens or more."""
        return max(map(len, self.vocabulary))

    @cached_property
    def _spelling_backend(self) -> Any | None:
        """The same tokenizer without its control tokens, so that none of them can be matched in a text."""
        from tokenizers import Tokenizer as Backend

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        spec = json.loads(backend.to_str())
        spec["added_tokens"] = [t for t in spec["added_tokens"] if t["id"] not in self.control_ids]
        spec["post_processor"] = None
        return Backend.from_str(json.dumps(spec))
