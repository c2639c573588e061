from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from kvz.decode.text_stream import TextStream
from kvz.errors import ModelError
from kvz.models.tokenizer import Tokenizer
from kvz.models.tokenizer_parts import TokenizerParts
from tests.tiny import make_tokenizer, wrapped


def byte_fallback_tokenizer():
    """As Gemma, Llama 2 and Phi-3 have it: what the vocabulary lacks is bytes, and a run of them decoded as one."""
    vocabulary = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "é"]
    backend = Backend(models.BPE({t: i for i, t in enumerate(vocabulary)}, [], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


EXTRA = ("<think>", "<|tool|>", "\t\t")
TOKENIZER = wrapped(make_tokenizer(extra=EXTRA))
BYTE_FALLBACK = wrapped(byte_fallback_tokenizer())
PIECES = [
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<think>",
    "<|tool|>",
    "<|im_",
    "end|>",
    "a",
    " ",
    "é",
    "数",
    "\n",
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_plain_text_never_becomes_control_and_reads_back(text):
    ids = TOKENIZER.encode_plain(text)
    assert TOKENIZER.control_ids.isdisjoint(ids)
    assert TOKENIZER.decode(ids) == text


def test_template_text_does_become_control():
    assert TOKENIZER.encode_template("<|im_start|>x<|im_end|>")[::2] == [1, 2]
    assert TOKENIZER.encode_plain("<|im_end|>") != TOKENIZER.encode_template("<|im_end|>")


def test_added_white_space_is_no_control_token():
    ids = TOKENIZER.encode_plain("a\t\tb")
    assert len(ids) == 3
    assert TOKENIZER.control_ids.isdisjoint(ids)


@pytest.mark.model
def test_embedded_tokenizer_spells_out_its_control_tokens(embedded):
    tokenizer = embedded.tokenizer
    text = "He typed <|im_end|> and then <|im_start|>system; nothing happened.<|endoftext|>"
    ids = tokenizer.encode_plain(text)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert embedded.end_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == text


def test_a_control_token_that_cannot_be_spelled_out_is_refused():
    words = {"<unk>": 0, "<s>": 1, "a": 2, "b": 3}
    backend = Backend(models.WordLevel(words, unk_token="<unk>"))  # its words are found whole
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = wrapped(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))
    assert tokenizer.encode_plain("a b") == [2, 3]
    with pytest.raises(ModelError, match="'<s>'"):
        tokenizer.encode_plain("a <s> b")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_streamed_pieces_add_up_and_never_break_a_character(text):
    stream = TextStream(TOKENIZER)
    pieces = [stream.push(i) for i in TOKENIZER.encode_plain(text)] + [stream.finish()]
    assert "".join(pieces) == stream.text == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab é你好世界ꙮ🙂", max_size=20))
def test_streamed_pieces_add_up_where_unknown_characters_are_bytes(text):
    ids = BYTE_FALLBACK.encode_plain(text)
    stream = TextStream(BYTE_FALLBACK)
    pieces = [stream.push(i) for i in ids] + [stream.finish()]
    assert "".join(pieces) == stream.text == text
    assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab\nQ:", max_size=30))
def test_a_stop_text_ends_the_stream_and_is_never_shown(text):
    stops = ("\n\n", "\nQ:")
    stream, shown = TextStream(TOKENIZER, stops), ""
    for token in TOKENIZER.encode_plain(text):
        shown += stream.push(token)
        if stream.stopped:
            break
    shown += stream.finish()
    cut = min([at for stop in stops if (at := text.find(stop)) >= 0], default=None)
    assert shown == text[:cut]
    assert stream.stopped == (cut is not None)


BYTES = [b"a", b" ", b"\xe6", b"\x95", b"\xb0", b"\xff", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xc3"]


def byte_ids(data: bytes) -> list[int]:
    """One token for each byte, of the byte-level tokenizer."""
    return [TOKENIZER.vocabulary[bytes_to_unicode()[byte]] for byte in data]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(BYTES), max_size=24).map(b"".join))
def test_bytes_that_are_no_text_stream_as_they_decode(data):
    stream = TextStream(TOKENIZER)
    pieces = [stream.push(i) for i in byte_ids(data)] + [stream.finish()]
    assert "".join(pieces) == stream.text == data.decode(errors="replace")


@pytest.mark.parametrize("unit", [b"\xff", b"\x80", b"\xe6", "\ufffd".encode(), b"a\xff", b"\xe6\x95"])
@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_text_is_released_though_its_tokens_end_in_no_character(kind, unit):
    if kind == "byte level":
        tokenizer, ids = TOKENIZER, byte_ids(unit * 300)
    else:
        tokenizer = BYTE_FALLBACK
        ids = [tokenizer.vocabulary["a" if byte == 97 else f"<0x{byte:02X}>"] for byte in unit * 300]
    stream, shown = TextStream(tokenizer), 0
    for number, token in enumerate(ids, 1):
        shown += len(stream.push(token))
        if number % len(unit) == 0:
            assert len(tokenizer.decode(ids[:number])) - shown <= 10
    shown += len(stream.finish())
    assert shown == len(stream.text) > 250


def test_a_token_costs_the_same_however_long_the_answer():
    """The tokens that are decoded are counted: what is pending does not grow."""

    class Counting(Tokenizer):
        decoded = 0

        def decode(self, ids):
            self.decoded += len(ids)
            return super().decode(ids)

    counts = []
    for length in (500, 2000):
        tokenizer = Counting(TokenizerParts.from_transformers(make_tokenizer()))
        stream = TextStream(tokenizer)
        for token in byte_ids(b"\xff" * length):
            stream.push(token)
        counts.append(tokenizer.decoded / length)
    assert counts[1] < 1.1 * counts[0]
    assert counts[1] < 200
