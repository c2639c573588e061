"""Steps without the host: the same answers as the plain way, and nothing that would wait or grow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvz.archive import Archive
from kvz.compression import compress
from kvz.decode import batch
from kvz.decode.decoding import Decoding
from kvz.decode.run import Answer, Run
from kvz.decode.sampling import NOT_A_NUMBER, DeviceSampler, Sampling
from kvz.decode.session import Session
from kvz.decode.step import decoder as decoder_module
from kvz.decode.step.decoder import StepDecoder
from kvz.decode.step.graph import LATE, StepGraph
from kvz.decode.step.reader import StepRoom
from kvz.decode.step.slots import StepSlots
from kvz.decode.step.state import StepState
from kvz.errors import DecodeError
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
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


def stepped(session: Session, question: str, new: int, sampling: Sampling | None = None) -> tuple[int, ...]:
    ids = session.ids_of(question)
    growing = session.growing(len(ids), new)
    seed = None if sampling is None else sampling.seed
    StepDecoder(session.model, session.reading, sampling).answer(ids, growing, lambda piece: None, seed)
    return tuple(growing.ids)


class LateGraph(StepGraph):
    """Tokens arrive as late as on a GPU, and steps run after the end of an answer."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._late = LATE


@pytest.mark.parametrize("graph", [StepGraph, LateGraph])
@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda d: d.policy)
def test_answers_are_those_of_the_plain_way(
    archive: Archive,
    model: LanguageModel,
    decoding: Decoding,
    graph: type[StepGraph],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoder_module, "StepGraph", graph)
    session = archive.session(model, decoding)
    assert session.policy == decoding.policy
    for question in QUESTIONS:
        assert stepped(session, question, 30) == session.ask(question, 30).ids


def test_one_decoder_answers_question_after_question(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model)
    decoder = StepDecoder(model, session.reading)
    for question, new in [(QUESTIONS[0], 12), (QUESTIONS[1] * 12, 200), (QUESTIONS[0], 12), (QUESTIONS[2], 1)]:
        ids = session.ids_of(question)
        growing = session.growing(len(ids), new)
        took = decoder.answer(ids, growing, lambda piece: None)
        plain = session.ask(question, new)
        assert tuple(growing.ids) == plain.ids
        assert took.tail_bytes + session.archive_nbytes == plain.kv_bytes
        assert (took.token_seconds is None) == (plain.token_seconds is None)


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
        logits = Run(model, reading.store(tail), tail, session.cache.logical_length).feed(ids)
        firsts.append(int(logits.argmax()))
        lengths.append(len(ids))
    state.begin(firsts, lengths, session.cache.logical_length)
    return StepGraph(model, session.cache, reader, state, DeviceSampler(Sampling(), model.device)), firsts


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


def test_sampling_on_the_device() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -40.0]).expand(20000, -1)
    drawn = DeviceSampler(Sampling(1.0, seed=3), torch.device("cpu")).choose(logits)
    shares = torch.bincount(drawn, minlength=5) / 20000
    torch.testing.assert_close(shares, torch.softmax(logits[0], -1), atol=0.012, rtol=0)
    few = DeviceSampler(Sampling(1.0, top_k=2, seed=3), torch.device("cpu")).choose(logits)
    assert set(few.tolist()) == {0, 1}
    likely = DeviceSampler(Sampling(1.0, top_p=0.5, seed=3), torch.device("cpu")).choose(logits)
    assert set(likely.tolist()) == {0}
    again = DeviceSampler(Sampling(1.0, seed=3), torch.device("cpu"))
    assert torch.equal(again.choose(logits), drawn)
    assert not torch.equal(DeviceSampler(Sampling(1.0, seed=4), torch.device("cpu")).choose(logits), drawn)
    again.restart(3)
    assert torch.equal(again.choose(logits), drawn)


def test_logits_that_are_no_numbers_end_an_answer_and_are_not_fed(
    archive: Archive, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = torch.full((2, 4), float("nan"))
    assert DeviceSampler(Sampling(), torch.device("cpu")).choose(nan).tolist() == [NOT_A_NUMBER] * 2
    session = archive.session(model)
    graph, _ = graph_of(session, QUESTIONS[:1])
    monkeypatch.setattr(DeviceSampler, "choose", lambda self, logits: torch.full((len(logits),), NOT_A_NUMBER))
    assert graph.step() == [NOT_A_NUMBER]
    assert graph.state.ids.tolist() == [0]  # what no embedding has must not reach one
    with pytest.raises(DecodeError, match="NaN"):
        stepped(session, QUESTIONS[0], 5)


def test_a_failed_answer_leaves_nothing_to_the_next(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model)
    decoder = StepDecoder(model, session.reading)

    def broken(piece: str) -> None:
        raise KeyboardInterrupt

    ids = session.ids_of(QUESTIONS[0])
    with pytest.raises(KeyboardInterrupt):
        decoder.answer(ids, session.growing(len(ids), 9), broken)
    growing = session.growing(len(ids), 9)
    decoder.answer(ids, growing, lambda piece: None)
    assert tuple(growing.ids) == session.ask(QUESTIONS[0], 9).ids


def test_a_first_token_that_ends_the_answer(
    archive: Archive, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = archive.session(model)
    ids = session.ids_of(QUESTIONS[0])
    growing = session.growing(len(ids), 9)
    monkeypatch.setattr(growing, "_stop_ids", frozenset(range(100000)))
    took = StepDecoder(model, session.reading).answer(ids, growing, lambda piece: None)
    assert (growing.stop, growing.ids, took.token_seconds) == ("end", [], None)


def test_a_stop_text_ends_an_answer_where_it_does_the_plain_way(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model)
    plain = session.ask(QUESTIONS[0], 20)
    session.seam = replace(session.seam, stop_texts=(plain.text[2:4],))
    stopped = session.ask(QUESTIONS[0], 20)
    ids = session.ids_of(QUESTIONS[0])
    growing = session.growing(len(ids), 20)
    took = StepDecoder(model, session.reading).answer(ids, growing, lambda piece: None)
    assert tuple(growing.ids) == stopped.ids
    assert len(stopped.ids) < len(plain.ids)
    assert took.tail_bytes + session.archive_nbytes == stopped.kv_bytes


def test_a_seed_draws_the_same_answer_whatever_was_asked_before(archive: Archive, model: LanguageModel) -> None:
    session = archive.session(model)
    sampling = Sampling(1.5, seed=7)
    first, other = (stepped(session, question, 15, sampling) for question in QUESTIONS[:2])
    decoder = StepDecoder(model, session.reading, sampling)
    for question, answer in [(QUESTIONS[1], other), (QUESTIONS[0], first), (QUESTIONS[0], first)]:
        ids = session.ids_of(question)
        growing = session.growing(len(ids), 15)
        decoder.answer(ids, growing, lambda piece: None, 7)
        assert tuple(growing.ids) == answer


@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda d: d.policy)
def test_a_batch_by_steps_gives_the_answers_of_one_at_a_time(
    archive: Archive, model: LanguageModel, decoding: Decoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = archive.session(model, decoding)
    questions = [*QUESTIONS, QUESTIONS[1] * 12, *QUESTIONS]  # the long one makes the slots grow
    alone = [session.ask(question, 20).ids for question in questions]
    monkeypatch.setattr(batch, "batch_slots", lambda model, reading, _, size, sampling: StepSlots(model, reading, size))
    answers = list(batch.ask_batch(session, questions, 3, 20))
    assert [answer.ids for answer in answers if isinstance(answer, Answer)] == alone
