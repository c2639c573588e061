"""Spans and texts that every head keeps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.compression import compress
from kvz.errors import UsageError
from kvz.scoring.protection import protected_tokens
from kvz.scoring.snapkv import SnapKV
from kvz.scoring.spans import parse_span
from tests.conftest import TEXT
from tests.tiny import make_tokenizer, wrapped

TOKENIZER = wrapped(make_tokenizer())  # a token is a byte


def masked(text: str, *protect: str | tuple[int | None, int | None]) -> list[int]:
    ids = TOKENIZER.encode_plain(text)
    return protected_tokens(TOKENIZER, ids, protect).nonzero()[:, 0].tolist()


def test_spans_are_python_slices():
    assert parse_span("3:7") == (3, 7)
    assert parse_span(" -4: ") == (-4, None)
    assert parse_span(":") == (None, None)
    assert masked("0123456789", (2, 4), (-2, None)) == [2, 3, 8, 9]
    assert masked("0123456789", (None, 1), (9, 99)) == [0, 9]
    for bad in ("9" * 5000 + ":", "", "5", "a:b", "1:2:3", "1-2", "1.5:2"):
        with pytest.raises(UsageError, match="no span of tokens"):
            parse_span(bad)
    with pytest.raises(UsageError, match="10 tokens"):
        masked("0123456789", (10, 20))


def test_many_and_overlapping_occurrences_take_no_time_each():
    text = "ab" * 20000 + "c"
    assert masked(text, "a", "bab") == list(range(40000))
    assert masked(text, "abc") == [39998, 39999, 40000]


def test_texts_protect_every_occurrence_and_every_byte_of_it():
    assert masked("a-b-a-b", "a-b") == [0, 1, 2, 4, 5, 6]
    assert masked("aaaa", "aa") == [0, 1, 2, 3]
    assert masked("naïve 🙂!", "ïv") == [2, 3, 4]
    assert masked("naïve 🙂!", "🙂") == [7, 8, 9, 10]
    with pytest.raises(UsageError, match="does not contain"):
        masked("abc", "abd")
    with pytest.raises(UsageError, match="empty"):
        compress(TEXT, protect=[" "])
    for bad in (5, None, 0.5):
        with pytest.raises(UsageError, match="no span"):
            compress(TEXT, protect=[bad])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="no span"):
        compress(TEXT, protect=[(1, 2, 3)])  # type: ignore[list-item]


@settings(max_examples=80, deadline=None)
@given(text=st.text(min_size=1, max_size=40), data=st.data())
def test_a_protected_piece_is_found_where_it_stands(text, data):
    first = data.draw(st.integers(0, len(text) - 1))
    last = data.draw(st.integers(first + 1, len(text)))
    try:
        ids = TOKENIZER.encode_plain(text)
    except UnicodeEncodeError:
        return
    if TOKENIZER.decode(ids) != text or not text[first:last].strip():
        return
    begin, end = len(text[:first].encode()), len(text[:last].encode())
    assert set(range(begin, end)) <= set(masked(text, text[first:last]))


@pytest.mark.parametrize("allocation", ["nonuniform", "uniform", "adakv", "pyramid", "head"])
def test_protected_tokens_are_in_every_head_and_count(tiny, allocation):
    at = len(TEXT[: TEXT.index("blue")].encode())
    archive = compress(TEXT, tiny, ratio=0.3, allocation=allocation, protect=["blue", (0, 3)], keep_recent=2)
    prefix, length = archive.manifest.prompt.prefix_tokens, archive.manifest.prompt.context_tokens
    wanted = {*range(3), *range(at, at + 4), length - 2, length - 1}
    for layer in archive.cache.layers:
        for first, last in zip(layer.bounds, layer.bounds[1:], strict=False):
            kept = set((layer.positions[first:last] - prefix).tolist())
            assert wanted <= kept
    assert archive.manifest.compression.pairs_kept in {
        round(0.3 * 6 * length),
        6 * round(0.3 * length),
        3 * round(0.6 * length),
    }
    sharing = archive.manifest.compression.allocation_parameters
    assert sharing["protect_0"] == "text 'blue'"
    assert sharing["protect_1"] == "tokens 0:3"


def test_protecting_everything_keeps_everything(tiny):
    archive = compress(TEXT, tiny, ratio=0.3, protect=[(None, None)])
    assert archive.manifest.compression.pairs_kept == archive.manifest.compression.pairs_total


def test_protecting_more_than_the_budget_says_the_least(tiny):
    with pytest.raises(UsageError, match="at least 100 of"):
        compress(TEXT, tiny, ratio=0.1, protect=[(0, 100)])
    assert torch.is_tensor(protected_tokens(TOKENIZER, [3, 4], ()))


def test_a_text_that_is_left_out_is_not_in_the_manifest_either(tiny):
    archive = compress(TEXT, tiny, ratio=0.9, protect="blue", method="snapkv", include_text=False)
    sharing = archive.manifest.compression.allocation_parameters
    assert sharing["protect_0"] == "(a text of 4 characters, left out)"
    asked = SnapKV(query="Who is Mara?")
    archive = compress(TEXT, tiny, ratio=0.9, method=asked, include_text=False)
    assert archive.manifest.compression.parameters["query"] == "(left out)"
    assert compress(TEXT, tiny, ratio=0.9, method=asked).manifest.compression.parameters["query"] == "Who is Mara?"
