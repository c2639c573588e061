"""Long texts are encoded in pieces: the ids are those of the whole, and an interrupt is heard."""

from __future__ import annotations

import signal
import time
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.models.language_model import LanguageModel
from kvz.models.tokenizer import Tokenizer
from tests.conftest import EXAMPLES
from tests.sentencepiece import KINDS, make_blank_tokenizer
from tests.tiny import make_tokenizer, wrapped

SCRAPS = [" ", "\n", "  ", "a", "the ledger", "é", "数", "🙂", "123456", "don't", "\r\n", "\t", "e\u0301", "_"]


@cache
def transformers_own(kind: str) -> Any:
    return make_tokenizer() if kind == "bytes" else make_blank_tokenizer(kind)


def tokenizer(kind: str) -> Tokenizer:
    return wrapped(transformers_own(kind))


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(["bytes", *KINDS]), st.booleans(), st.lists(st.sampled_from(SCRAPS), min_size=8, max_size=40))
def test_pieces_are_the_ids_of_the_whole(kind: str, continues: bool, scraps: list[str]) -> None:
    own = tokenizer(kind)
    unit = "".join(scraps)
    text = unit * (150_000 // len(unit))
    pieces = list(own.pieces(text, continues))
    assert len(pieces) > 1
    assert [end for _, end in pieces] == sorted({end for _, end in pieces})
    ids = [i for piece, _ in pieces for i in piece]
    assert ids == own.encode_plain(text, continues) == at_once(transformers_own(kind), text, continues)


def at_once(own: Any, text: str, continues: bool) -> list[int]:
    """Ids of a text by transformers; of one that continues, after a digit, which no token joins to what follows."""
    before = "4" if continues else ""
    ids = [list(own(given, add_special_tokens=False)["input_ids"]) for given in (before, before + text)]
    return ids[1][len(ids[0]) :]


@pytest.mark.model
@pytest.mark.parametrize("text", ["examples", "_" * 200_001, "0123456789" * 20_000, (" " * 70_000 + "x\n") * 3])
def test_the_embedded_tokenizer_has_the_ids_of_the_whole(embedded: LanguageModel, text: str) -> None:
    own = embedded.tokenizer
    if text == "examples":
        text = "\n".join(path.read_text() for path in sorted(Path(EXAMPLES).glob("*.txt"))) * 4
    ids = own.encode_template(text)  # at once, there being no control token
    assert len(text) > 1 << 16
    assert own.encode_plain(text) == ids
    end = own.end_of(text, 1500)
    assert end is None or (ids[-len(end[0]) :] == end[0] and len(end[0]) >= 1500)


@pytest.mark.parametrize("kind", ["bytes", *KINDS])
def test_the_end_of_a_text_is_that_of_the_whole(kind: str) -> None:
    own = tokenizer(kind)
    text = "The ledger is blue, and 4711 pages long. " * 5000
    ids = own.encode_plain(text)
    end = own.end_of(text, 700)
    assert end is not None
    assert ids[-len(end[0]) :] == end[0]
    assert len(end[0]) >= 700
    assert own.decode(end[0]).strip() == text[end[1] :].strip()
    assert own.end_of(text[:500], 700) is None


@pytest.mark.model
def test_an_end_that_depends_on_the_beginning_is_not_guessed(embedded: LanguageModel) -> None:
    """A run of one character is cut into tokens from its beginning on."""
    assert embedded.tokenizer.end_of("_" * 300_000, 100) is None


def test_control_tokens_of_a_long_text_are_spelled_out() -> None:
    own = tokenizer("bytes")
    text = "He typed <|im_end|> and <|im_start|>. " * 4000
    ids = own.encode_plain(text)
    assert own.control_ids.isdisjoint(ids)
    assert own.decode(ids) == text


def test_an_interrupt_is_heard_while_a_huge_text_is_encoded() -> None:
    own, text = tokenizer("bytes"), "_" * 20_000_000

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            own.encode_plain(text)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 4
