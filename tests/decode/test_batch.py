"""Questions answered side by side get the answers that they get one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvz.archive import Archive
from kvz.compression import compress
from kvz.config import Decoding, Sampling
from kvz.decode.conversation import Conversation
from kvz.decode.sequence import Answer
from kvz.decode.session import Session
from kvz.errors import QuestionError, UsageError
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.tiny import GEMMA_WINDOW, make_model_folder

QUESTIONS = [f"{word} {'is it ' * (number % 5)}{number}?" for number, word in enumerate(["Where", "Who", "Why"] * 6)]


def together(session: Session, questions: list[str], size: int, new: int = 15, **options: object) -> list[object]:
    return [
        answer.ids if isinstance(answer, Answer) else str(answer)
        for answer in session.ask_all(questions, new, size=size, **options)  # type: ignore[arg-type]
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
    answers = list(session.ask_all(QUESTIONS[:7], 10, size=3))
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


@pytest.mark.parametrize("graphs", [False, True])
def test_sampling_with_a_seed_is_the_same_in_any_company(archive: Archive, tiny: LanguageModel, graphs: bool) -> None:
    """Also from a recorded step, which draws on the device."""
    session = archive.session(tiny, Decoding())
    session.graphs = graphs
    sampling = Sampling(1.5, seed=4)
    alone = [session.ask(question, 12, sampling).ids for question in QUESTIONS[:5]]
    assert [Conversation(session).ask(question, 12, sampling).ids for question in QUESTIONS[:5]] == alone
    assert together(session, QUESTIONS[:5], 3, 12, sampling=sampling) == alone


def test_answers_are_given_as_soon_as_those_before_are_complete(archive: Archive, tiny: LanguageModel) -> None:
    taken: list[str] = []

    def questions() -> object:
        for question in QUESTIONS:
            taken.append(question)
            yield question

    answers = archive.session(tiny).ask_all(questions(), 1, size=2)  # type: ignore[arg-type]
    next(answers)
    assert len(taken) == 2  # as many as there are slots


def test_what_cannot_be_batched_is_asked_one_at_a_time_or_refused(archive: Archive, tiny: LanguageModel) -> None:
    turned = archive.session(tiny, Decoding("rocketkv-mt", 32))
    with pytest.raises(UsageError, match="one question at a time"):
        turned.ask_all(["a", "b"], 5, size=2)
    assert isinstance(next(turned.ask_all(["a"], 5, size=1)), Answer)
    assert isinstance(next(turned.ask_all([""], 5, size=1)), QuestionError)
    session = archive.session(tiny, Decoding())
    other = session.read(Decoding("rocketkv-mt", 16))
    answers = list(session.ask_all(["a", "b"], 5, reading=other))
    assert [a.policy for a in answers if isinstance(a, Answer)] == ["rocketkv-mt"] * 2
    with pytest.raises(UsageError, match="give a batch size of 1"):
        session.ask_all(["a", "b"], 5, size=2, reading=other)


@pytest.mark.parametrize("size", [None, 2])
def test_what_is_no_string_is_an_error_in_its_place(archive: Archive, tiny: LanguageModel, size: int | None) -> None:
    asked: list[object] = ["a", None, 7]
    answers = list(archive.session(tiny, Decoding()).ask_all(asked, 5, size=size))  # type: ignore[arg-type]
    assert [type(answer) for answer in answers] == [Answer, QuestionError, QuestionError]


def test_sizes_and_questions_that_make_no_sense(archive: Archive, tiny: LanguageModel) -> None:
    session = archive.session(tiny, Decoding())
    for size in (0, -1, True, 1.5):
        with pytest.raises(UsageError, match="1 or more"):
            session.ask_all(["Why?"], 5, size=size)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a list of questions"):
        session.ask_all("Why?", 5)
    assert list(session.ask_all([], 5)) == []
