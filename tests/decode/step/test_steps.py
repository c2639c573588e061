"""Steps without the host: the same answers as the plain way, and nothing that would wait or grow."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvz.archive import Archive
from kvz.compression import compress
from kvz.config import Decoding, Sampling
from kvz.decode.engine import Engine
from kvz.decode.sampling import NOT_A_NUMBER, choose_rows
from kvz.decode.sequence import Answer
from kvz.decode.session import Session
from kvz.decode.step.decoder import StepDecoder
from kvz.decode.step.graph import LATE, StepGraph
from kvz.decode.step.reader import StepRoom
from kvz.decode.step.state import StepState
from kvz.errors import DecodeError
from kvz.models.attention import PairStore
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.decode.ragged import feed
from tests.tiny import make_model_folder

QUESTIONS = ["Where is the spare key?", "Who keeps the ledger and what colour is it?", "When?"]
WAITING = {"_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select", "unique", "_unique2", "equal"}


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3", "mistral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = make_model_folder(tmp_path_factory.mktemp(f"steps-{request.param}"), request.param)
    return load_model(str(folder), "cpu", "float32")


@pytest.fixture(scope="module")
def archive(model: LanguageModel) -> Archive:
    return compress(TEXT * 2, model, ratio=0.5)


DECODINGS = [Decoding("dense"), Decoding("lowbit", 40), Decoding("hsa", 40)]


def stepped(
    session: Session, question: str, new: int, sampling: Sampling | None = None, late: int | None = None
) -> tuple[int, ...]:
    return by_steps(StepDecoder(session.model, session.reading, sampling, late), session, question, new, sampling).ids


def by_steps(
    decoder: StepDecoder, session: Session, question: str, new: int, sampling: Sampling | None = None, **options: Any
) -> Answer:
    sequence = session.sequence(session.ids_of(question), new, sampling, **options)
    decoder.answer(sequence)
    return sequence.finished(session.archive_nbytes)


@pytest.mark.parametrize("late", [0, LATE])
@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda d: d.policy)
def test_answers_are_those_of_the_plain_way(
    archive: Archive, model: LanguageModel, decoding: Decoding, late: int
) -> None:
    """Also where tokens arrive as late as on a GPU, and steps run after the end of an answer."""
    session = archive.session(model, decoding)
    assert session.policy == decoding.policy
    for question in QUESTIONS:
        assert stepped(session, question, 30, late=late) == session.ask(question, 30).ids


def test_one_decoder_answers_question_after_question(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model)
    decoder = StepDecoder(model, session.reading)
    for question, new in [(QUESTIONS[0], 12), (QUESTIONS[1] * 12, 200), (QUESTIONS[0], 12), (QUESTIONS[2], 1)]:
        got, plain = by_steps(decoder, session, question, new), session.ask(question, new)
        assert got.ids == plain.ids
        assert got.kv_bytes == plain.kv_bytes
        assert (got.token_seconds is None) == (plain.token_seconds is None)


@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda d: d.policy)
def test_questions_side_by_side(archive: Archive, model: LanguageModel, decoding: Decoding) -> None:
    session = archive.session(model, decoding)
    graph, firsts = graph_of(session, QUESTIONS)
    rows = [list(ids) for ids in zip(firsts, *(graph.step() or [] for _ in range(8)), strict=True)]
    for question, row in zip(QUESTIONS, rows, strict=True):
        alone = session.ask(question, 9).ids
        assert row[: len(alone)] == list(alone)


def graph_of(session: Session, questions: list[str]) -> tuple[StepGraph, list[int]]:
    """A graph that stands after the questions, and the first tokens of their answers."""
    model, reading = session.model, session.reading
    state = StepState.make(model.geometry.shapes, len(questions), 128, model.dtype, model.device)
    assert reading.steps is not None
    group = model.geometry.query_heads // model.geometry.shapes[0].kv_heads
    reader = reading.steps(StepRoom(len(questions), group, 128, model.dtype))
    firsts, lengths = [], []
    for row, question in enumerate(questions):
        tail, ids = state.row(row), session.ids_of(question)
        firsts.append(int(feed(model, reading, tail, ids).argmax()))
        lengths.append(len(ids))
    count = len(questions)
    state.begin(firsts, lengths, session.cache.logical_length, [0] * count, [1] * count)
    return StepGraph(model, session.cache, reader, state, Sampling()), firsts


class Log(TorchDispatchMode):
    """Notes every operation with the shapes of what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        shapes = [tuple(t.shape) for t in (out if isinstance(out, (tuple, list)) else [out]) if hasattr(t, "shape")]
        self.seen[func._schema.name.split("::")[1], str(shapes)] += 1
        return out


@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda d: d.policy)
def test_a_step_waits_for_nothing_and_is_the_same_every_time(
    archive: Archive, model: LanguageModel, decoding: Decoding
) -> None:
    graph, _ = graph_of(archive.session(model, decoding), QUESTIONS)
    graph.run_eagerly()
    logs = []
    for _ in range(3):
        with Log() as log:
            graph.run_eagerly()
        logs.append(log.seen)
    assert {name for name, _ in logs[0]} & WAITING == set()
    assert logs[0] == logs[1] == logs[2]  # same operations, same sizes: what a graph can hold, and memory stays
    assert sum(logs[0].values()) > 50


def test_the_log_sees_what_waits() -> None:
    with Log() as log:
        int(torch.arange(5).sum())
        torch.arange(5).nonzero()
    assert {name for name, _ in log.seen} & WAITING == {"_local_scalar_dense", "nonzero"}


class Broken(LanguageModel):
    """Steps give logits that are no numbers; a question is read as ever."""

    def step(self, ids: torch.Tensor, positions: torch.Tensor, store: PairStore) -> torch.Tensor:
        return torch.full_like(super().step(ids, positions, store), float("nan"))


def test_logits_that_are_no_numbers_end_an_answer_and_are_not_fed(archive: Archive, model: LanguageModel) -> None:
    nan, zeros = torch.full((2, 4), float("nan")), torch.zeros(2, dtype=torch.int64)
    assert choose_rows(nan, Sampling(), zeros, zeros).tolist() == [NOT_A_NUMBER] * 2
    broken = Broken(**{field.name: getattr(model, field.name) for field in fields(model)})
    session = archive.session(broken, Decoding())
    graph, _ = graph_of(session, QUESTIONS[:1])
    assert graph.step() == [NOT_A_NUMBER]
    assert graph.state.ids.tolist() == [0]  # what no embedding has must not reach one
    with pytest.raises(DecodeError, match="NaN"):
        stepped(session, QUESTIONS[0], 5)


def test_a_failed_answer_leaves_nothing_to_the_next(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model)
    decoder = StepDecoder(model, session.reading)

    def broken(piece: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        by_steps(decoder, session, QUESTIONS[0], 9, stream=broken)
    assert by_steps(decoder, session, QUESTIONS[0], 9).ids == session.ask(QUESTIONS[0], 9).ids


def test_a_first_token_that_ends_the_answer(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model, Decoding())
    session.seam = replace(session.seam, stop_ids=tuple(range(300)))
    got = by_steps(StepDecoder(model, session.reading), session, QUESTIONS[0], 9)
    assert (got.stop, got.ids, got.token_seconds) == ("end", (), None)


def test_a_stop_text_ends_an_answer_where_it_does_the_plain_way(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model, Decoding())
    plain = session.ask(QUESTIONS[0], 20)
    session.seam = replace(session.seam, stop_texts=(plain.text[2:4],))
    stopped = session.ask(QUESTIONS[0], 20)
    got = by_steps(StepDecoder(model, session.reading), session, QUESTIONS[0], 20)
    assert got.ids == stopped.ids
    assert len(stopped.ids) < len(plain.ids)
    assert got.kv_bytes == stopped.kv_bytes


def test_a_seed_draws_the_same_answer_by_steps_and_without(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model)
    sampling = Sampling(1.5, seed=7)
    first, other = (session.ask(question, 15, sampling).ids for question in QUESTIONS[:2])
    decoder = StepDecoder(model, session.reading, sampling)
    for question, answer in [(QUESTIONS[1], other), (QUESTIONS[0], first), (QUESTIONS[0], first)]:
        assert by_steps(decoder, session, question, 15, sampling).ids == answer


@pytest.mark.parametrize(
    ("decoding", "sampling"), [(DECODINGS[0], Sampling(1.2, seed=5)), *((each, Sampling()) for each in DECODINGS)]
)
def test_a_batch_by_steps_gives_the_answers_of_one_at_a_time(
    archive: Archive, model: LanguageModel, decoding: Decoding, sampling: Sampling
) -> None:
    session = archive.session(model, decoding)
    questions = [*QUESTIONS, QUESTIONS[1] * 12, *QUESTIONS]  # the long one makes the slots grow
    alone = [session.ask(question, 20, sampling).ids for question in questions]
    engine = Engine(model, 3, graphs=True)
    asked = [engine.add(session.sequence(session.ids_of(question), 20, sampling)) for question in questions]
    assert {sequence.error for sequence in engine.run()} == {None}
    assert [tuple(sequence.answer.ids) for sequence in asked] == alone
