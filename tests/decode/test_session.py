from __future__ import annotations

import pytest

from kvz.compression import compress
from kvz.errors import QuestionError, UsageError
from tests.conftest import TEXT
from tests.tiny import MAX_POSITIONS


def test_what_an_answer_reports(tiny):
    archive = compress(TEXT, tiny, ratio=0.5)
    pieces: list[str] = []
    answer = archive.ask("Where is the key?", 12, stream=pieces.append)
    assert answer.new_tokens <= 12
    assert answer.stop in ("end", "length")
    assert answer.context_tokens == archive.manifest.logical_length
    assert answer.kv_bytes > archive.cache.nbytes
    assert answer.first_token_seconds > 0
    assert "".join(pieces).strip() == answer.text == tiny.tokenizer.decode(answer.ids).strip()


def test_one_token_and_the_first_end_token(tiny):
    archive = compress(TEXT, tiny, ratio=0.5)
    first = archive.ask("Where?", 1)
    assert first.new_tokens == 1
    assert first.stop == "length"
    assert first.token_seconds is None


def test_a_question_fills_the_positions_and_one_more_token_does_not_fit(tiny):
    archive = compress("word " * 780, tiny, ratio=0.2)  # one token a byte: 3,900 of 4,096 positions
    around = len("\n\n") + len(archive.manifest.prompt.question.after_ids)
    left = MAX_POSITIONS - archive.manifest.logical_length
    fits = "q" * (left - around - 1)
    answer = archive.ask(fits, 50)
    assert answer.question_tokens == left - 1
    assert answer.new_tokens <= 1
    assert answer.stop in ("full", "end")
    with pytest.raises(QuestionError, match=rf"only {left} of the model's {MAX_POSITIONS}"):
        archive.ask(fits + "q")


def test_a_tail_is_kept_and_grown(tiny):
    archive = compress(TEXT, tiny, ratio=0.5)
    session = archive.session()
    short = session.ask("Who?", 5)
    long = session.ask("Who keeps the ledger, and where does he keep it when the office is closed?", 40)
    again = session.ask("Who?", 5)
    assert long.kv_bytes > short.kv_bytes
    assert again.ids == short.ids


def test_no_new_token_is_wrong_usage(tiny):
    with pytest.raises(UsageError):
        compress(TEXT, tiny, ratio=0.5).ask("Who?", 0)
