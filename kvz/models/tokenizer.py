"""A model's tokenizer, with text that may hold control tokens kept apart from text that must not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from kvz.errors import ModelError
from kvz.models.long_text import PIECE, Spans, encoded_end, encoded_pieces
from kvz.models.quiet import first_line, quiet_transformers

__all__ = ["Tokenizer"]


class Tokenizer:
    """Encodes template text (control tokens are control) and plain text (they are not), and decodes answers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
            backend.no_truncation()  # which a file may ask for; now, for later it would be under another thread's hands
            backend.no_padding()

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

    def encode_template(self, text: str, continues: bool = False) -> list[int]:
        """Ids of text written by a chat template: its control tokens become control.

        `continues` is as for `encode_plain`.
        """
        if continues and self._bare_backend is not None:
            return _continued(self._tokenizer.backend_tokenizer, self._bare_backend, self._added_ids, text)[0]
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_plain(self, text: str, continues: bool = False) -> list[int]:
        """Ids of text written by a user: what looks like a control token is spelled out in ordinary tokens.

        Text that `continues` other text gets no blank before it from a tokenizer that puts one before a text. Raises
        ModelError if this tokenizer cannot spell it out.
        """
        if len(text) > PIECE and self._in_pieces:
            return [i for ids, _ in self.pieces(text, continues) for i in ids]
        if continues and self._bare_backend is not None:
            return self._checked(self._spell(text, continues)[0])
        ids = list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])  # whatever its length
        if self.control_ids.isdisjoint(ids):
            return ids
        return self._checked(self._spell(text, continues)[0] if self._spelling_backend else ids)

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
        assert self._spelling_backend is not None
        encoded = self._spelling_backend.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets

    def _checked(self, ids: list[int]) -> list[int]:
        """`ids`; ModelError if there is a control token among them."""
        if not self.control_ids.isdisjoint(ids):
            token = self._tokenizer.decode([next(i for i in ids if i in self.control_ids)])
            raise ModelError(f"the text contains the control token '{token}' and this tokenizer cannot spell it out")
        return ids

    def decode(self, ids: Sequence[int], control: bool = False) -> str:
        """Text of `ids`, control tokens left out unless `control`."""
        decoded = self._tokenizer.decode(list(ids), skip_special_tokens=not control, clean_up_tokenization_spaces=False)
        return str(decoded)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Every token and its id, added ones included."""
        return dict(self._tokenizer.get_vocab())

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters is n / this many tokens or more."""
        return max(map(len, self.vocabulary))

    @cached_property
    def puts_blank(self) -> bool:
        """Whether it puts a blank before a text that is none of its characters, as those of SentencePiece do."""
        return self._bare_backend is not None

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(int(i) for i in self._tokenizer.added_tokens_decoder)

    @cached_property
    def _spelling_spec(self) -> dict[str, Any] | None:
        """The tokenizer as JSON, without its control tokens and what it adds around a text."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        spec: dict[str, Any] = json.loads(backend.to_str())
        spec["added_tokens"] = [t for t in spec["added_tokens"] if t["id"] not in self.control_ids]
        spec["post_processor"] = None
        return spec

    @cached_property
    def _in_pieces(self) -> bool:
        """Whether a long text has the same ids when it is encoded piece by piece."""
        return self._spelling_spec is not None and self._spelling_spec["model"]["type"] == "BPE"

    @cached_property
    def _spelling_backend(self) -> Any | None:
        """The same tokenizer without its control tokens, so that none of them can be matched in a text."""
        return None if self._spelling_spec is None else _backend_of(self._spelling_spec)

    @cached_property
    def _bare_backend(self) -> Any | None:
        """That one without the blank that it puts before a text; None if it puts none."""
        spec = self._spelling_spec
        if spec is None:
            return None
        bare = {**spec, "normalizer": _unprefixed(spec["normalizer"])}
        bare["pre_tokenizer"] = _unprefixed(spec["pre_tokenizer"])
        return None if bare == spec else _backend_of(bare)


def _backend_of(spec: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer as Backend

    return Backend.from_str(json.dumps(spec))


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
