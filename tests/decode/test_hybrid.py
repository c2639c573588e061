"""Models with sliding-window layers: Gemma 3, tiny and real."""

from __future__ import annotations

import pytest
import torch
import transformers

import kvz
from kvz.compression import compress
from kvz.errors import ModelError
from kvz.models.language_model import LanguageModel, load_model
from kvz.prompt import make_frame, question_ids
from tests.conftest import TEXT, example
from tests.gemma import gemma_folder
from tests.tiny import make_model_folder


@pytest.fixture(scope="module")
def gemma() -> LanguageModel:
    try:
        return load_model(str(gemma_folder()), "cpu", "float32")
    except ModelError as error:
        pytest.skip(str(error))


def generated(model: LanguageModel, document: str, question: str, new: int) -> list[int]:
    """What transformers generates, greedily, after the same ids; an end token is left out."""
    network = transformers.AutoModelForCausalLM.from_pretrained(str(model.source.folder), dtype=torch.float32).eval()
    frame = make_frame(model.tokenizer, model.end_ids)
    ids = [*frame.prefix_ids, *model.tokenizer.encode_plain(document)]
    ids += question_ids(model.tokenizer, frame.seam, question)
    out = network.generate(torch.tensor([ids]), max_new_tokens=new, do_sample=False, use_cache=True)
    return [token for token in out[0, len(ids) :].tolist() if token not in frame.seam.stop_ids]


@pytest.mark.parametrize("question", ["Who?", "Where does the spare key hang, and when does the ferry leave? " * 3])
def test_everything_kept_is_what_transformers_generates(tmp_path, question):
    model = load_model(str(make_model_folder(tmp_path, "gemma3", layers=3)), "cpu", "float32")
    archive = compress(TEXT * 2, model, ratio=1.0)
    answer = archive.ask(question, max_new_tokens=60)
    assert list(answer.ids) == generated(model, TEXT * 2, question, 60)[: len(answer.ids)]
    assert answer.new_tokens > 30  # longer than the window, so that it slides over the seam


def test_sliding_layers_are_restored_between_questions(tmp_path):
    model = load_model(str(make_model_folder(tmp_path / "model", "gemma3")), "cpu", "float32")
    archive = compress(TEXT * 2, model, ratio=0.3)
    archive.save(tmp_path / "a.kvz")
    session = kvz.load(tmp_path / "a.kvz").session(model)
    first = session.ask("Where is the key?", 40)
    session.ask("When does the ferry to Skarholm leave, and what is a ticket?", 40)
    assert session.ask("Where is the key?", 40).ids == first.ids == archive.ask("Where is the key?", 40).ids


@pytest.mark.model
def test_real_gemma_answers_as_transformers_does(gemma, tmp_path):
    text, questions = example("meeting")
    archive = compress(text, gemma, ratio=1.0)
    for item in questions[:3]:
        answer = archive.ask(item["question"], max_new_tokens=16)
        want = generated(gemma, text, item["question"], 16)
        assert list(answer.ids) == want[: len(answer.ids)]
        assert answer.new_tokens > 0


@pytest.mark.model
def test_real_gemma_compressed_keeps_its_windows_and_answers(gemma, tmp_path):
    text, questions = example("meeting")
    archive = compress(text, gemma, ratio=0.5)
    info = archive.manifest
    assert [layer.window for layer in info.model.layers].count(512) == 15
    assert info.compression.pairs_total == 3 * info.prompt.context_tokens
    archive.save(tmp_path / "g.kvz")
    session = kvz.load(tmp_path / "g.kvz").session(gemma)
    first = session.ask(questions[0]["question"], 12)
    session.ask(questions[1]["question"], 12)
    assert session.ask(questions[0]["question"], 12).ids == first.ids
