"""What of a document goes into an archive: the same ids as of the whole text, without encoding all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import kvz
from kvz.errors import DocumentError
from kvz.excerpt import excerpt_of
from kvz.models.language_model import LanguageModel
from kvz.models.tokenizer import Tokenizer
from kvz.models.tokenizer_parts import TokenizerParts
from kvz.prompt import make_frame, truncate_ids
from tests.tiny import make_tokenizer

PARTS = ("head", "middle", "tail")
TEXT = "The ledger is blue, and 4711 pages long. " * 60_000


class Counting(Tokenizer):
    """Counts the characters of the pieces that were encoded."""

    seen = 0

    def pieces(self, text: str, continues: bool = False) -> Iterator[tuple[list[int], int]]:
        last = 0
        for ids, end in super().pieces(text, continues):
            self.seen, last = self.seen + end - last, end
            yield ids, end


@pytest.fixture
def counting(tiny: LanguageModel) -> LanguageModel:
    return replace(
        tiny, identity=replace(tiny.identity, tokenizer=Counting(TokenizerParts.from_transformers(make_tokenizer())))
    )


@pytest.mark.parametrize("part", PARTS)
def test_of_a_huge_text_only_what_is_needed_is_encoded(counting: LanguageModel, part: str) -> None:
    frame = make_frame(counting.tokenizer, counting.end_ids)
    excerpt = excerpt_of(counting, frame, TEXT, part)
    assert isinstance(counting.tokenizer, Counting)
    assert counting.tokenizer.seen < len(TEXT) // 10
    ids = counting.tokenizer.encode_plain(TEXT)
    assert excerpt.ids == truncate_ids(ids, len(excerpt.ids), part)
    assert len(excerpt.ids) > 3000
    assert excerpt.estimated
    assert excerpt.dropped == pytest.approx(len(ids) - len(excerpt.ids), rel=0.01)


def test_a_huge_text_is_refused_without_encoding_it(counting: LanguageModel) -> None:
    frame = make_frame(counting.tokenizer, counting.end_ids)
    with pytest.raises(DocumentError, match=r"is about 2\d{6} tokens and the model has 4096 positions"):
        excerpt_of(counting, frame, TEXT, None)
    assert isinstance(counting.tokenizer, Counting)
    assert counting.tokenizer.seen < len(TEXT) // 10


@pytest.mark.parametrize("part", PARTS)
def test_of_other_texts_the_tokens_left_out_are_counted(tiny: LanguageModel, part: str) -> None:
    frame, text = make_frame(tiny.tokenizer, tiny.end_ids), TEXT[:5000]
    excerpt = excerpt_of(tiny, frame, text, part)
    assert (len(excerpt.ids) + excerpt.dropped, excerpt.estimated) == (5000, False)
    assert excerpt.ids == truncate_ids(tiny.tokenizer.encode_plain(text), len(excerpt.ids), part)


def test_an_archive_says_that_its_count_is_an_estimate(tiny: LanguageModel) -> None:
    source = kvz.compress(TEXT, tiny, ratio=0.1, method="recent", truncate="tail").manifest.source
    assert source.dropped_estimated
    assert source.truncated == "tail"
