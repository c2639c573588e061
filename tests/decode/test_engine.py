"""Continuous batching: whatever the company, every sequence gets the answer that it gets alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvz.compression import compress
from kvz.config import Decoding, Sampling
from kvz.decode import engine as engine_module
from kvz.decode.engine import Engine
from kvz.decode.sequence import Answer, Sequence
from kvz.decode.session import Session
from kvz.models.decoder import Decoder
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.tiny import make_model_folder

QUESTIONS = ["Where is the key?", "Who keeps the ledger, and what colour is it?", "Why?", "When does it leave? " * 20]
OTHER = "Ole feeds the heron at six. The lamp of the mole is out, and the keeper knows.\n"


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = make_model_folder(tmp_path_factory.mktemp(f"engine-{request.param}"), request.param)
    return load_model(str(folder), "cpu", "float32")


@pytest.fixture(scope="module")
def sessions(model: LanguageModel) -> list[Session]:
    """Two archives of one model, and one of them read in two more ways."""
    first, second = (compress(text * 3, model, ratio=0.5) for text in (TEXT, OTHER))
    decodings = [Decoding(), Decoding("lowbit", 24), Decoding("rocketkv-mt", 24)]
    sessions = [first.session(model, decoding) for decoding in decodings]
    return [*sessions, second.session(model, Decoding())]


def sequence(session: Session, question: str, new: int = 12, sampling: Sampling | None = None) -> Sequence:
    return session.sequence(session.ids_of(question), new, sampling)


def answers(sequences: list[Sequence]) -> list[tuple[int, ...]]:
    return [tuple(one.answer.ids) for one in sequences]


def test_sequences_over_several_archives_and_policies_join_and_leave(
    model: LanguageModel, sessions: list[Session]
) -> None:
    cases = [(s, q, new) for new, q in zip((12, 5, 1, 9), QUESTIONS, strict=True) for s in sessions]
    alone = [session.ask(question, new).ids for session, question, new in cases]
    engine = Engine(model, most=5)
    asked = [sequence(*case) for case in cases]
    for one in asked[:3]:
        engine.add(one)
    for late in asked[3:]:  # one more at every step
        engine.step()
        engine.add(late)
    list(engine.run())
    assert engine.unfinished == 0
    assert answers(asked) == alone


def test_sampled_answers_are_the_same_in_any_company(model: LanguageModel, sessions: list[Session]) -> None:
    samplings = [Sampling(1.3, seed=3), Sampling(0.7, top_k=5, seed=4), Sampling(1.0, top_p=0.8, seed=5), None]
    cases = list(zip([sessions[0], sessions[3]] * 2, QUESTIONS, samplings, strict=True))
    alone = [session.ask(question, 12, sampling).ids for session, question, sampling in cases]
    engine = Engine(model)
    asked = [engine.add(sequence(session, question, 12, sampling)) for session, question, sampling in cases]
    list(engine.run())
    assert answers(asked) == alone


def test_an_aborted_sequence_leaves_at_once_and_the_others_go_on(model: LanguageModel, sessions: list[Session]) -> None:
    session = sessions[0]
    want = session.ask(QUESTIONS[1], 20).ids
    engine = Engine(model, most=2)
    dropped, kept, waiting, never = (engine.add(sequence(session, q, 20)) for q in QUESTIONS[:3] + QUESTIONS[1:2])
    for _ in range(3):
        engine.step()
    engine.abort(dropped)
    engine.abort(never)
    engine.abort(never)  # a second time is no error
    said = list(dropped.answer.ids)
    assert engine.unfinished == 2
    ended = list(engine.run())
    assert set(ended) == {kept, waiting}
    assert dropped.answer.ids == said
    assert tuple(kept.answer.ids) == want


def test_a_long_question_is_read_in_parts_beside_running_answers(
    model: LanguageModel, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "PASS_TOKENS", 60)
    session = sessions[0]
    long, short = sequence(session, QUESTIONS[3]), sequence(session, QUESTIONS[0], 30)
    engine = Engine(model)
    engine.add(short)
    engine.step()
    engine.add(long)
    grown = []
    while long.unfed and not short.ended:
        before = len(short.answer.ids)
        engine.step()
        grown.append(len(short.answer.ids) - before + (short.answer.stop == "end"))
    assert len(grown) > 2
    assert set(grown) == {1}
    list(engine.run())
    assert answers([long, short]) == [session.ask(QUESTIONS[3], 12).ids, session.ask(QUESTIONS[0], 30).ids]


def test_a_sequence_whose_logits_are_not_finite_fails_alone(
    model: LanguageModel, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions[0]
    want = [session.ask(question, 12).ids for question in QUESTIONS[:3]]
    logits = Decoder.logits

    @torch.inference_mode()
    def broken(decoder: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        out = logits(decoder, hidden).clone()
        if len(out) == 3:
            out[1] = float("nan")
        return out

    monkeypatch.setattr(Decoder, "logits", broken)
    engine = Engine(model)
    asked = [engine.add(sequence(session, question)) for question in QUESTIONS[:3]]
    list(engine.run())
    assert "not finite" in str(asked[1].error)
    assert [asked[0].error, asked[2].error] == [None, None]
    assert answers([asked[0], asked[2]]) == [want[0], want[2]]


def test_what_does_not_fit_into_memory_waits(
    model: LanguageModel, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions[0]
    want = [session.ask(question, 8).ids for question in QUESTIONS[:3]]
    monkeypatch.setattr(engine_module, "free_bytes", lambda device: 0)
    engine = Engine(model)
    asked = [engine.add(sequence(session, question, 8)) for question in QUESTIONS[:3]]
    engine.step()
    assert [one.tail is not None for one in asked] == [True, False, False]  # one goes on, whatever is free
    list(engine.run())
    assert answers(asked) == want


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_batch_of_sixteen_answers_as_one_at_a_time(tmp_path: Path, threads: int, dtype: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = load_model(str(make_model_folder(tmp_path)), "cpu", dtype)
        session = compress(TEXT * 2, model, ratio=0.5).session(model)
        questions = [f"{question} {number}" for number in range(4) for question in QUESTIONS]
        sampling = Sampling(0.9, seed=11)
        alone = [session.ask(question, 8, sampling).ids for question in questions]
        engine = Engine(model)
        asked = [engine.add(sequence(session, question, 8, sampling)) for question in questions]
        list(engine.run())
        assert answers(asked) == alone
    finally:
        torch.set_num_threads(before)


def test_a_stream_that_fails_leaves_the_others_as_they_are(model: LanguageModel, sessions: list[Session]) -> None:
    session = sessions[0]
    want = session.ask(QUESTIONS[1], 12).ids

    def broken(piece: str) -> None:
        if bad.answer.ids:
            raise OSError("closed")

    bad = session.sequence(session.ids_of(QUESTIONS[0]), 12, stream=broken)
    good = sequence(session, QUESTIONS[1])
    engine = Engine(model)
    for one in (bad, good):
        engine.add(one)
    with pytest.raises(OSError, match="closed"):
        list(engine.run())
    engine.abort(bad)
    list(engine.run())
    assert tuple(good.answer.ids) == want


def no_memory(*sizes: object, **options: object) -> None:
    raise MemoryError


def test_memory_that_could_not_be_had_is_no_end(
    model: LanguageModel, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions[0]
    want = session.ask(QUESTIONS[0], 8).ids
    engine = Engine(model)
    engine.add(sequence(session, QUESTIONS[0], 8))
    list(engine.run())
    refused = engine.add(sequence(session, QUESTIONS[3] * 4, 300))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "zeros", no_memory)
        with pytest.raises(MemoryError):
            engine.step()
    engine.abort(refused)
    again = engine.add(sequence(session, QUESTIONS[0], 8))
    list(engine.run())
    assert tuple(again.answer.ids) == want


def test_seeds_share_the_recorded_step(model: LanguageModel, sessions: list[Session]) -> None:
    session = sessions[0]
    samplings = [Sampling(1.3, seed=seed) for seed in range(4)]
    alone = [session.ask(QUESTIONS[0], 10, sampling).ids for sampling in samplings]
    engine = Engine(model, most=2, graphs=True)
    asked = [engine.add(sequence(session, QUESTIONS[0], 10, sampling)) for sampling in samplings]
    list(engine.run())
    assert answers(asked) == alone
    assert len(set(alone)) > 1


def test_many_query_heads_answer_in_a_batch_as_alone(tmp_path: Path) -> None:
    """More query rows of a head than a dense step takes at a time, in 16 bits."""
    model = load_model(str(make_model_folder(tmp_path, query_heads=7, kv_heads=1)), "cpu", "bfloat16")
    session = compress(TEXT * 2, model, ratio=0.5).session(model)
    questions = [f"{question} {number}" for number in range(4) for question in QUESTIONS]
    alone = [session.ask(question, 8).ids for question in questions]
    assert [a.ids for a in session.ask_all(questions, 8, size=16) if isinstance(a, Answer)] == alone
