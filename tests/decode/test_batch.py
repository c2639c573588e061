"""Questions answered side by side get the answers that they get one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvz.archive import Archive
from kvz.compression import compress
from kvz.decode.batch import ask_batch, automatic_size
from kvz.decode.conversation import Conversation
from kvz.decode.decoding import Decoding
from kvz.decode.run import Answer
from kvz.decode.sampling import Sampling
from kvz.decode.session import Session
from kvz.errors import QuestionError, UsageError
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.tiny import GEMMA_WINDOW, make_model_folder

QUESTIONS = [f"{word} {'is it ' * (number % 5)}{number}?" for number, word in enumerate(["Where", "Who", "Why"] * 6)]


def together(session: Session, questions: list[str], size: int, new: int = 15, **options: object) -> list[object]:
    return [
        answer.ids if isinstance(answer, Answer) else str(answer)
        for answer in ask_batch(session, questions, size, new, **options)  # type: ignore[arg-type]
    ]


@pytest.fixture(scope="module")
def archive(tiny: LanguageModel) -> Archive:
    return compress(TEXT * 2, tiny, ratio=0.5)


@pytest.mark.parametrize("size", [1, 3, 16, 40])
def test_answers_are_those_of_one_at_a_time_in_their_order(archive: Archive, tiny: LanguageModel, size: int) -> None:
    session = archive.session(tiny)
    alone = [session.ask(question, 15) for question in QUESTIONS]
    assert len({len(answer.ids) for answer in alone}) > 1  # some end early, and their slots are filled again
    assert together(session, QUESTIONS, size) == [answer.ids for answer in alone]


@pytest.mark.parametrize("new", [1, 3, 2 * GEMMA_WINDOW])
def test_sliding_layers_see_each_row_through_its_own_window(tmp_path: Path, new: int) -> None:
    model = load_model(str(make_model_folder(tmp_path, "gemma3")), "cpu", "float32")
    session = compress(TEXT, model, ratio=0.5).session(model)
    questions = ["x", "Where is the key of the old house by the sea?", *QUESTIONS[:4]]
    alone = [session.ask(question, new).ids for question in questions]
    assert together(session, questions, 4, new) == alone


@pytest.mark.parametrize("policy", ["hsa", "lowbit", "quest", "sparq", "exact-topk"])
def test_every_row_chooses_for_itself(archive: Archive, tiny: LanguageModel, policy: str) -> None:
    session = archive.session(tiny, Decoding(policy, 48))
    alone = [session.ask(question, 10) for question in QUESTIONS[:7]]
    answers = list(ask_batch(session, QUESTIONS[:7], 3, 10))
    assert [a.ids for a in answers if isinstance(a, Answer)] == [a.ids for a in alone]
    [what] = {(a.policy, a.pairs_read) for a in answers if isinstance(a, Answer) and a.new_tokens > 1}
    assert what == (policy, session.reading.pairs_read())


def test_a_bad_question_is_reported_in_its_place_and_the_others_go_on(archive: Archive, tiny: LanguageModel) -> None:
    session = archive.session(tiny)
    asked = ["Where?", " ", "Who?", "q" * 5000, "Why?", "\ud800"]
    got = together(session, asked, 2)
    assert [got[0], got[2], got[4]] == [session.ask(question, 15).ids for question in ("Where?", "Who?", "Why?")]
    assert "empty" in str(got[1])
    assert "positions" in str(got[3])
    assert "not valid text" in str(got[5])
    assert together(session, [" ", ""], 2) == ["the question is empty"] * 2
    assert together(session, [], 2) == []


def test_long_questions_are_read_in_passes_of_their_own(archive: Archive, tiny: LanguageModel) -> None:
    session = archive.session(tiny, Decoding())
    asked = ["Where? " * 100, "Why?", "Who? " * 300, "x", "When? " * 90, "How?"]
    assert together(session, asked, 6, 8) == [session.ask(question, 8).ids for question in asked]
    assert together(session, asked, 2, 8) == [session.ask(question, 8).ids for question in asked]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_sampling_with_a_seed_is_the_same_in_any_company(
    archive: Archive, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """On a GPU, too, where answers without a seed go by steps, and draw on the device."""
    monkeypatch.setattr(Session, "_on_gpu", lambda session: on_gpu)
    session = archive.session(tiny)
    sampling = Sampling(1.5, seed=4)
    alone = [session.ask(question, 12, sampling).ids for question in QUESTIONS[:5]]
    assert [Conversation(session).ask(question, 12, sampling).ids for question in QUESTIONS[:5]] == alone
    assert session.goes_by_steps(session.reading, Sampling(1.5)) == on_gpu
    assert together(session, QUESTIONS[:5], 3, 12, sampling=sampling) == alone


def test_answers_are_given_as_soon_as_those_before_are_complete(archive: Archive, tiny: LanguageModel) -> None:
    taken: list[str] = []

    def questions() -> object:
        for question in QUESTIONS:
            taken.append(question)
            yield question

    answers = ask_batch(archive.session(tiny), questions(), 2, 1)  # type: ignore[arg-type]
    next(answers)
    assert len(taken) == 2  # as many as there are slots


def test_slots_fit_the_questions_and_what_cannot_be_batched_is_refused(archive: Archive, tiny: LanguageModel) -> None:
    session = archive.session(tiny)
    assert automatic_size(session, ["a", "b", "c"], 10) == 3
    assert automatic_size(session, ["a"] * 99, 10) == 16
    turned = archive.session(tiny, Decoding("rocketkv-mt", 32))
    assert automatic_size(turned, ["a"] * 99, 10) == 1
    with pytest.raises(UsageError, match="one question at a time"):
        next(ask_batch(turned, ["a", "b"], 2, 5))
    assert isinstance(next(ask_batch(turned, ["a"], 1, 5)), Answer)
    assert isinstance(next(ask_batch(turned, [""], 1, 5)), QuestionError)


def test_the_size_is_that_of_the_reading_that_is_asked_for(archive: Archive, tiny: LanguageModel) -> None:
    session = archive.session(tiny, Decoding())
    turned = session.read(Decoding("rocketkv-mt", 16))
    assert automatic_size(session, ["a", "b"], 5, turned) == 1
    answers = list(session.ask_all(["a", "b"], 5, reading=turned))
    assert [a.policy for a in answers if isinstance(a, Answer)] == ["rocketkv-mt"] * 2
    other = archive.session(tiny, Decoding("rocketkv-mt", 16))
    assert automatic_size(other, ["a", "b"], 5, session.reading) == 2
    with pytest.raises(UsageError, match="give a batch size of 1"):
        session.ask_all(["a", "b"], 5, size=2, reading=turned)


@pytest.mark.parametrize("size", [None, 2])
def test_what_is_no_string_is_an_error_in_its_place(archive: Archive, tiny: LanguageModel, size: int | None) -> None:
    asked: list[object] = ["a", None, 7]
    answers = list(archive.session(tiny, Decoding()).ask_all(asked, 5, size=size))  # type: ignore[arg-type]
    assert [type(answer) for answer in answers] == [Answer, QuestionError, QuestionError]


def test_sizes_and_questions_that_make_no_sense(archive: Archive, tiny: LanguageModel) -> None:
    session = archive.session(tiny, Decoding())
    for size in (0, -1, True, 1.5):
        with pytest.raises(UsageError, match="1 or more"):
            ask_batch(session, ["Why?"], size, 5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="1 or more"):
            session.ask_all(["Why?"], 5, size=size)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a list of questions"):
        session.ask_all("Why?", 5)
    assert list(session.ask_all([], 5)) == []


def test_little_memory_makes_small_batches(
    archive: Archive, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = archive.session(tiny, Decoding())
    asked = ["🙂" * 10] * 20
    ids = len(session.ids_of(asked[0])) + 30
    slot = ids * 3 * 2 * 2 * 16 * 4  # layers, heads, keys and values, dimensions, bytes
    for slots in (2, 5):
        monkeypatch.setattr("kvz.decode.batch.free_bytes", lambda device, slots=slots: 4 * slots * slot)
        assert automatic_size(session, asked, 30) == slots
    monkeypatch.setattr("kvz.decode.batch.free_bytes", lambda device: 0)
    assert automatic_size(session, asked, 30) == 1
