from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

import kvz
from kvz.archive import seam_of
from kvz.compression import compress
from kvz.config import Sampling
from kvz.decode.session import Session
from kvz.errors import ArchiveMismatch, QuestionError, UsageError
from kvz.models.decoder import Decoder
from kvz.models.language_model import load_model
from tests.conftest import TEXT
from tests.tiny import MAX_POSITIONS, make_model_folder


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


def test_one_token(tiny):
    archive = compress(TEXT, tiny, ratio=0.5)
    first = archive.ask("Where?", 1)
    assert first.new_tokens == 1
    assert first.stop == "length"
    assert first.token_seconds is None
    assert first.pairs_read is None


@pytest.mark.parametrize("more", [0, 1, 16])
def test_an_answer_ends_at_the_first_end_token(tiny, more):
    """Any token of an answer can serve as its end token, which is not one of its ids and takes a step of its own."""
    archive = compress(TEXT, tiny, ratio=0.5)
    session = archive.session()
    session.seam = replace(session.seam, stop_ids=())
    whole = session.ask("Where is the key?", 20).ids
    at = next(i for i in range(4, 20) if whole[i] not in whole[:i])
    session.seam = replace(session.seam, stop_ids=(whole[at],))
    pieces: list[str] = []
    answer = session.ask("Where is the key?", at + more, stream=pieces.append)
    assert answer.ids == whole[:at]
    assert answer.stop == ("end" if more else "length")
    assert "".join(pieces).strip() == answer.text == tiny.tokenizer.decode(answer.ids).strip()
    session.seam = replace(session.seam, stop_ids=(whole[0],))
    nothing = session.ask("Where is the key?", 1 + more)
    assert (nothing.ids, nothing.text, nothing.stop, nothing.token_seconds) == ((), "", "end", None)


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


def test_a_model_that_is_refused_does_not_stick(tiny, tmp_path):
    other = load_model(str(make_model_folder(tmp_path, seed=9)), "cpu", "float32")
    archive = compress(TEXT, tiny, ratio=0.5)
    before = archive.ask("Who?", 5).ids
    with pytest.raises(ArchiveMismatch, match="the weights"):
        archive.session(other)
    assert archive.ask("Who?", 5).ids == before


def test_a_model_in_another_dtype_is_refused(tiny, tiny_folder):
    with pytest.raises(ArchiveMismatch, match="dtype='float32'"):
        compress(TEXT, tiny, ratio=0.5).session(load_model(str(tiny_folder), "cpu", "bfloat16"))


def test_a_stop_text_ends_the_answer_and_is_left_out(tiny):
    """Any text an answer contains can serve as its stop text."""
    archive = compress(TEXT, tiny, ratio=0.5)
    sampling = Sampling(2.0, seed=3)
    whole = archive.ask("Who?", 40, sampling)
    text = tiny.tokenizer.decode(whole.ids)
    stop = next(c for c in reversed(text) if c != "\ufffd")
    seam = replace(seam_of(archive.manifest), stop_texts=(stop,))
    pieces: list[str] = []
    cut = Session(tiny, archive.cache, seam).ask("Who?", 40, sampling, pieces.append)
    assert whole.new_tokens > 5
    assert cut.stop == "end"
    assert "".join(pieces) == text[: text.index(stop)]
    assert cut.ids == whole.ids[: cut.new_tokens]


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@gpu
def test_on_a_gpu_and_back_on_the_cpu(tiny_folder, tmp_path):
    on_gpu = load_model(str(tiny_folder), "cuda", "float32")
    archive = compress(TEXT, on_gpu, ratio=0.5)
    archive.save(tmp_path / "a.kvz")
    want = archive.ask("Who?", 10).ids
    assert kvz.load(tmp_path / "a.kvz").session(on_gpu).ask("Who?", 10).ids == want
    assert archive.session(load_model(str(tiny_folder), "cpu", "float32")).ask("Who?", 10).ids == want


class Timed:
    """A model's decoder on a clock: the first pass of answers' tokens takes ten times as long as others."""

    def __init__(self, decoder: Decoder) -> None:
        self.now = 0.0
        self._decoder = decoder
        self._stepped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def forward(self, ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        first = len(ids) <= 2 and not self._stepped
        self._stepped |= first
        self.now += 5.0 if first else 0.5
        return self._decoder.forward(ids, *arguments)


@pytest.mark.parametrize("batched", [False, True])
def test_the_time_of_a_token_leaves_out_what_is_done_once(tiny, monkeypatch, batched):
    """The first step waits, as one does that has kernels loaded or compiled."""
    decoder = Timed(tiny.decoder)
    session = compress(TEXT, tiny, ratio=0.5).session(replace(tiny, decoder=decoder))
    monkeypatch.setattr(time, "perf_counter", lambda: decoder.now)
    for answer in session.ask_all(["Who?", "When?"], 8, size=2) if batched else [session.ask("Who?", 8)]:
        assert answer.new_tokens > 3
        assert answer.token_seconds == 0.5
