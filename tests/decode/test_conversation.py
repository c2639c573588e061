"""Conversations equal the same turns through transformers with a full cache, and go on after an interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvz.archive import Archive, seam_of
from kvz.compression import compress
from kvz.config import Decoding
from kvz.decode.conversation import Conversation
from kvz.decode.session import Session
from kvz.errors import QuestionError
from kvz.models.decoder import Attend, Decoder
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.tiny import MAX_POSITIONS, make_model_folder

TURNS = [
    "Where is the key?",
    "And who keeps it?",
    "When does the ferry leave?",
    " Färjan? 🙂 ",
    "x",
    "What did I ask first?",
    "Is it blue?",
    "Why?",
    "Say that again.",
    "Thanks!",
]


pytestmark = pytest.mark.parametrize("graphs", [False, True], ids=["plain", "steps"])
"""Every test twice: as on a CPU, and by steps that do not wait for the host, as on a GPU."""


def opened(archive: Archive, model: LanguageModel, graphs: bool, budget: int | None = None) -> Session:
    session = archive.session(model, Decoding(budget=budget))
    session.graphs = graphs
    return session


class FullConversation:
    """The same through transformers: the template over all messages, everything computed anew in each turn."""

    def __init__(self, model: LanguageModel, stop_ids: tuple[int, ...]) -> None:
        folder = str(model.source.folder)
        self.network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.stop_ids = stop_ids
        self.messages: list[dict[str, str]] = []
        self.answers: list[list[int]] = []

    def ask(self, question: str, new: int) -> list[int]:
        content = question.strip() if self.messages else f"{TEXT}\n\n{question.strip()}"
        self.messages.append({"role": "user", "content": content})
        text = self.tokenizer.apply_chat_template(self.messages, tokenize=False, add_generation_prompt=True)
        pieces = text.split("@@answer@@")
        assert len(pieces) == len(self.answers) + 1
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            ids += self.tokenizer(piece, add_special_tokens=False)["input_ids"]
            ids += self.answers[index] if index < len(self.answers) else []
        prompt = torch.tensor([ids])
        out = self.network.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=list(self.stop_ids),
            pad_token_id=0,
        )
        answer = [i for i in out[0, len(ids) :].tolist() if i not in self.stop_ids]
        self.said(answer)
        return answer

    def said(self, answer: list[int]) -> None:
        self.answers.append(answer)
        self.messages.append({"role": "assistant", "content": "@@answer@@"})


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_ten_turns_equal_transformers_token_for_token(tmp_path: Path, family: str, graphs: bool) -> None:
    model = load_model(str(make_model_folder(tmp_path, family)), "cpu", "float32")
    archive = compress(TEXT, model, ratio=1.0)
    talk = Conversation(opened(archive, model, graphs))
    reference = FullConversation(model, seam_of(archive.manifest).stop_ids)
    for number, question in enumerate(TURNS, 1):
        answer = talk.ask(question, 12)
        assert list(answer.ids) == reference.ask(question, 12)
        assert talk.turns == number
    assert talk.positions_left == MAX_POSITIONS - archive.manifest.logical_length - talk.history
    first = talk.history
    talk.reset()
    assert (talk.turns, talk.history) == (0, 0)
    assert list(talk.ask(TURNS[0], 12).ids) == reference.answers[0]
    assert 0 < talk.history < first


def test_an_interrupted_answer_counts_as_far_as_it_was_said(tiny: LanguageModel, graphs: bool) -> None:
    archive = compress(TEXT, tiny, ratio=1.0)
    talk = Conversation(opened(archive, tiny, graphs))
    reference = FullConversation(tiny, seam_of(archive.manifest).stop_ids)
    reference.ask("Where?", 12)
    pieces = 0

    def interrupt(piece: str) -> None:
        nonlocal pieces
        pieces += 1
        if pieces == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk.ask("Where?", 12, stream=interrupt)
    reference.answers[-1] = reference.answers[-1][:4]
    assert list(talk.ask("Why?", 12).ids) == reference.ask("Why?", 12)


@pytest.mark.parametrize("budget", [None, 40])
def test_an_interrupted_answer_leaves_what_one_of_that_length_does(
    tiny: LanguageModel, budget: int | None, graphs: bool
) -> None:
    archive = compress(TEXT * 2, tiny, ratio=0.6)
    talk, other = (Conversation(opened(archive, tiny, graphs, budget)) for _ in range(2))
    said = other.ask("Where?", 4).ids
    pieces = iter(range(4))

    def interrupt(piece: str) -> None:
        if next(pieces) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk.ask("Where?", 12, stream=interrupt)
    assert len(said) == 4
    assert (talk.turns, talk.history) == (1, other.history)
    assert talk.ask("Why?", 12).ids == other.ask("Why?", 12).ids


class Interrupted:
    """A model's decoder that is interrupted once, at a moment of a question's pass that follows so many others: before,
    inside or after it, or after its logits."""

    def __init__(self, decoder: Decoder) -> None:
        self.moments: list[tuple[int, str]] = []
        self._decoder = decoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        self._interrupt("before")
        hidden = self._decoder.forward(ids, positions, self._inside(attend))
        self._interrupt("after")
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._decoder.logits(hidden)
        self._interrupt("logits")
        self.moments = [(follows - 1, moment) for follows, moment in self.moments]
        return logits

    def _interrupt(self, moment: str) -> None:
        if (0, moment) in self.moments:
            self.moments.clear()
            raise KeyboardInterrupt

    def _inside(self, attend: Attend) -> Attend:
        """When the first layer's pairs are in the tail and the others' are not."""

        def breaking(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            if layer:
                self._interrupt("inside")
            return attend(layer, query, key, value)

        return breaking


@pytest.mark.parametrize(
    "moment", [(0, "before"), (1, "before"), (0, "inside"), (1, "inside"), (1, "after"), (1, "logits")]
)
@pytest.mark.parametrize("turns", [0, 2])
def test_a_question_that_is_interrupted_before_its_answer_is_taken_back(
    tiny: LanguageModel, moment: tuple[int, str], turns: int, graphs: bool
) -> None:
    archive = compress(TEXT, tiny, ratio=0.5)
    decoder = Interrupted(tiny.decoder)
    model = replace(tiny, decoder=decoder)
    talk, other = (Conversation(opened(archive, made, graphs)) for made in (model, tiny))
    for question in TURNS[:turns]:
        assert talk.ask(question, 5).ids == other.ask(question, 5).ids
    pieces: list[str] = []
    decoder.moments.append(moment)
    with pytest.raises(KeyboardInterrupt):
        talk.ask("Where? " * 160, 5, stream=pieces.append)  # two passes
    assert pieces == []
    assert (talk.turns, talk.history) == (turns, other.history)
    assert talk.ask("Who?", 20).ids == other.ask("Who?", 20).ids
    assert (talk.turns, talk.history) == (turns + 1, other.history)


def test_an_answer_that_is_interrupted_at_its_first_piece_is_a_turn(tiny: LanguageModel, graphs: bool) -> None:
    archive = compress(TEXT, tiny, ratio=1.0)
    talk = Conversation(opened(archive, tiny, graphs))
    reference = FullConversation(tiny, seam_of(archive.manifest).stop_ids)
    reference.ask("Where?", 12)

    def interrupt(piece: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk.ask("Where?", 12, stream=interrupt)
    assert talk.turns == 1
    reference.answers[-1] = reference.answers[-1][:1]
    assert list(talk.ask("Why?", 12).ids) == reference.ask("Why?", 12)


def test_a_turn_that_cannot_be_asked_changes_nothing(tiny: LanguageModel, graphs: bool) -> None:
    archive = compress(TEXT, tiny, ratio=0.5)
    talk, other = (Conversation(opened(archive, tiny, graphs)) for _ in range(2))
    for conversation in (talk, other):
        conversation.ask("Where is the key?", 5)
    with pytest.raises(QuestionError, match="empty"):
        talk.ask("  ", 5)
    with pytest.raises(QuestionError, match="of conversation"):
        talk.ask("q" * (talk.positions_left - 20), 5)
    with pytest.raises(QuestionError):
        talk.ask("q" * 9000, 5)
    assert talk.history == other.history
    assert talk.ask("Who?", 20).ids == other.ask("Who?", 20).ids


def test_a_long_conversation_grows_its_tail_and_sparse_reading_may_change_on_the_way(
    tiny: LanguageModel, graphs: bool
) -> None:
    archive = compress(TEXT * 3, tiny, ratio=0.6)
    talk = Conversation(opened(archive, tiny, graphs))
    for budget in (None, 64, None):
        talk.read(Decoding(budget=budget))
        answer = talk.ask("word " * 60, 40)
        assert answer.policy == ("dense" if budget is None else "lowbit")
    assert talk.history > 900
    assert archive.ask("Where?", 8).ids == compress(TEXT * 3, tiny, ratio=0.6).ask("Where?", 8).ids


def test_without_a_chat_template_turns_follow_as_questions_and_answers(tmp_path: Path, graphs: bool) -> None:
    model = load_model(str(make_model_folder(tmp_path, template=None)), "cpu", "float32")
    archive = compress(TEXT, model, ratio=1.0)
    talk = Conversation(opened(archive, model, graphs))
    first = talk.ask("Where?", 6)
    second = talk.ask("Why?", 6)
    encode = model.tokenizer.encode_plain
    assert archive.token_ids is not None
    ids = [*archive.token_ids.tolist(), *encode("\n\nQuestion: Where?\nAnswer:"), *first.ids]
    ids += encode("\n\nQuestion: Why?\nAnswer:")
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    prompt = torch.tensor([ids])
    stops = list(seam_of(archive.manifest).stop_ids)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": stops, "pad_token_id": 0}
    out = network.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    assert out[0, len(ids) :][: second.new_tokens].tolist() == list(second.ids)


def test_a_stop_text_is_not_part_of_the_history(tmp_path: Path, graphs: bool) -> None:
    """What ends the answer is cut from what later turns see, as it is from what is shown."""
    model = load_model(str(make_model_folder(tmp_path, template=None)), "cpu", "float32")
    archive = compress(TEXT, model, ratio=1.0)
    session = opened(archive, model, graphs)
    whole = session.ask("Where?", 12)
    text = model.tokenizer.decode(whole.ids)
    stop = next(c for c in text[2:] if c not in ("\ufffd", *text[:2]))
    session.seam = replace(session.seam, stop_texts=(stop,))
    talk = Conversation(session)
    answer = talk.ask("Where?", 12)
    assert answer.stop == "end"
    said = list(answer.ids[: answer.ids.index(model.tokenizer.encode_plain(stop)[0])])
    assert talk.history == answer.question_tokens + len(said)
    encode, stops = model.tokenizer.encode_plain, list(session.seam.stop_ids)
    assert archive.token_ids is not None
    ids = [*archive.token_ids.tolist(), *encode("\n\nQuestion: Where?\nAnswer:"), *said]
    prompt = torch.tensor([ids + encode("\n\nQuestion: Why?\nAnswer:")])
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": stops, "pad_token_id": 0}
    out = network.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, prompt.shape[1] :].tolist()
    second = list(talk.ask("Why?", 6).ids)
    assert out[: len(second)] == second


def test_an_answer_that_ends_at_once_is_a_turn(tiny: LanguageModel, graphs: bool) -> None:
    archive = compress(TEXT, tiny, ratio=1.0)
    session = opened(archive, tiny, graphs)
    first = session.ask("Where?", 1).ids[0]
    session.seam = replace(session.seam, stop_ids=(first,))
    talk = Conversation(session)
    answer = talk.ask("Where?", 5)
    assert (answer.text, answer.stop, talk.turns, talk.history) == ("", "end", 1, answer.question_tokens)
