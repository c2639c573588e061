"""A model's tokenizer, with text that may hold control tokens kept apart from text that must not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kvz.errors import ModelError
from kvz.models.chat_template import ChatTemplate
from kvz.models.long_text import PIECE, Spans, encoded_end, encoded_pieces
from kvz.models.quiet import first_line, quiet_transformers
from kvz.models.tokenizer_files import parts_from_files
from kvz.models.tokenizer_parts import TokenizerParts

__all__ = ["Tokenizer"]


class Tokenizer:
    """Encodes template text (control tokens are control) and plain text (they are not), and decodes answers."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._backend = parts.backend
        self._backend.no_truncation()  # a file may ask for it; later would be under another thread's hands
        self._backend.no_padding()

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load from a model folder; raises ModelError if there is none that works."""
        try:
            return cls(parts_from_files(folder) or _made_by_transformers(folder))
        except Exception as error:
            raise ModelError(f"cannot load the tokenizer in {folder}: {first_line(error)}") from error

    @property
    def template(self) -> str | None:
        """The chat template, or None. Of several named ones, the default."""
        return self._parts.template

    @property
    def begin_ids(self) -> list[int]:
        """The begin-of-text token where the tokenizer puts one before a text, else nothing."""
        bos = self._named_id("bos_token")
        return [bos] if bos is not None and bos in self._backend.encode("", add_special_tokens=True).ids else []

    @property
    def end_id(self) -> int | None:
        """The tokenizer's end-of-text token."""
        return self._named_id("eos_token")

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids that plain text must never become: special tokens, and every added token that is not mere white space."""
        added = {i for i, token in self._backend.get_added_tokens_decoder().items() if token.content.strip()}
        special = {self._backend.token_to_id(token) for token in self._parts.special}
        return frozenset(added | special - {None})

    def render(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool) -> str:
        """The chat template's text for `messages`; whatever the template raises comes through."""
        return self._chat_template.render(messages, add_generation_prompt)

    def encode_template(self, text: str, continues: bool = False) -> list[int]:
        """Ids of text written by a chat template: its control tokens become control.

        `continues` is as for `encode_plain`.
        """
        if continues and self._bare_backend is not None:
            return _continued(self._backend, self._bare_backend, self._added_ids, text)[0]
        return self._encoded(text)

    def encode_plain(self, text: str, continues: bool = False) -> list[int]:
        """Ids of text written by a user: what looks like a control token is spelled out in ordinary tokens.

        Text that `continues` other text gets no blank before it from a tokenizer that puts one before a text. Raises
        ModelError if this tokenizer cannot spell it out.
        """
        if len(text) > PIECE and self._in_pieces:
            return [i for ids, _ in self.pieces(text, continues) for i in ids]
        if continues and self._bare_backend is not None:
            return self._checked(self._spell(text, continues)[0])
        ids = self._encoded(text)
        return ids if self.control_ids.isdisjoint(ids) else self._checked(self._spell(text, continues)[0])

    def pieces(self, text: str, continues: bool = False) -> Iterator[tuple[list[int], int]]:
        """The ids of `encode_plain` in pieces, each with the character at which it ends: of a long text, many."""
        if len(text) > PIECE and self._in_pieces:
            for ids, end in encoded_pieces(self._spell, text, continues):
                yield self._checked(ids), end
        else:
            yield self.encode_plain(text, continues), len(text)

    def end_of(self, text: str, count: int) -> tuple[list[int], int] | None:
        """The last ids of `encode_plain`, `count` or more, and the character where they begin.

        None where they can only be told by encoding all of the text.
        """
        end = encoded_end(self._spell, text, count) if self._in_pieces else None
        return None if end is None else (self._checked(end[0]), end[1])

    def _spell(self, text: str, continues: bool) -> tuple[list[int], Spans]:
        """Ids of a plain text and their characters, by backends that know no control token."""
        if continues and self._bare_backend is not None:
            return _continued(self._spelling_backend, self._bare_backend, self._added_ids, text)
        encoded = self._spelling_backend.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets

    def _checked(self, ids: list[int]) -> list[int]:
        """`ids`; ModelError if there is a control token among them."""
        if not self.control_ids.isdisjoint(ids):
            token = self.decode([next(i for i in ids if i in self.control_ids)], control=True)
            raise ModelError(f"the text contains the control token '{token}' and this tokenizer cannot spell it out")
        return ids

    def decode(self, ids: Sequence[int], control: bool = False) -> str:
        """Text of `ids`, control tokens left out unless `control`."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=not control)
        return text

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Every token and its id, added ones included."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters is n / this many tokens or more."""
        return max(map(len, self.vocabulary))

    @cached_property
    def puts_blank(self) -> bool:
        """Whether it puts a blank before a text that is none of its characters, as those of SentencePiece do."""
        return self._unprefixed_parts is not None

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return ChatTemplate(self._parts.template or "", self._parts.named)

    def _named_id(self, name: str) -> int | None:
        token = self._parts.named.get(name)
        found: int | None = None if token is None else self._backend.token_to_id(token)
        return found

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _in_pieces(self) -> bool:
        """Whether a long text has the same ids when it is encoded piece by piece."""
        from tokenizers.models import BPE

        return isinstance(self._backend.model, BPE)

    @cached_property
    def _spelling_backend(self) -> Any:
        """The same tokenizer without its control tokens, so that none of them can be matched in a text."""
        return self._spelling()

    @cached_property
    def _bare_backend(self) -> Any | None:
        """That one without the blank that it puts before a text; None if it puts none."""
        return None if self._unprefixed_parts is None else self._spelling(**self._unprefixed_parts)

    @cached_property
    def _unprefixed_parts(self) -> dict[str, Any] | None:
        """Normaliser and pre-tokeniser, as JSON, that put nothing before a text; None where its own put nothing."""
        own = {name: _as_json(getattr(self._backend, name)) for name in ("normalizer", "pre_tokenizer")}
        bare = {name: _unprefixed(part) for name, part in own.items()}
        return None if bare == own else bare

    def _spelling(self, **parts: Any) -> Any:
        """The tokenizer with other `parts`, without its control tokens and what it adds around a text."""
        from tokenizers import Tokenizer as Backend

        spec = msgspec.json.decode(self._backend.to_str(), type=dict[str, msgspec.Raw])
        added = msgspec.json.decode(spec["added_tokens"])
        changed = {"added_tokens": [t for t in added if t["id"] not in self.control_ids], "post_processor": None}
        return Backend.from_str(msgspec.json.encode({**spec, **changed, **parts}).decode())


def _made_by_transformers(folder: Path) -> TokenizerParts:
    from transformers import AutoTokenizer

    with quiet_transformers():
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    return TokenizerParts.from_transformers(found)


def _as_json(part: Any) -> dict[str, Any] | None:
    """A part of a backend as tokenizer.json has it."""
    return None if part is None else json.loads(part.__getstate__())


def _unprefixed(part: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normaliser or pre-tokeniser that puts nothing before a text."""
    if part is None or part["type"] == "Prepend":
        return None
    if part["type"] == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    for name in ("normalizers", "pretokenizers"):
        if name in part:
            return {**part, name: [own for inner in part[name] if (own := _unprefixed(inner)) is not None]}
    return part


def _continued(backend: Any, bare: Any, added: frozenset[int], text: str) -> tuple[list[int], Spans]:
    """Ids and characters of a text that goes on: `bare` up to its first added token, then as `backend` has it."""
    encoded = backend.encode(text, add_special_tokens=False)
    at = next((place for place, token in enumerate(encoded.ids) if token in added), None)
    end = len(text) if at is None else encoded.token_to_chars(at)[0]
    begun = bare.encode(text[:end], add_special_tokens=False)
    if at is None:
        return begun.ids, begun.offsets
    return begun.ids + encoded.ids[at:], begun.offsets + encoded.offsets[at:]
