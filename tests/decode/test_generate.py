"""-r 1.0 gives transformers' own greedy tokens; a loaded archive gives the same bits; questions do not disturb it."""

from __future__ import annotations

import copy
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import kvz
from kvz.archive import Archive, seam_of
from kvz.compression import compress
from kvz.models.language_model import LanguageModel, load_model
from kvz.prompt import question_ids
from tests.conftest import TEXT, example
from tests.near import NETWORK, assert_near, forward_terms
from tests.tiny import FAMILIES, make_model_folder


class FullCacheGenerator:
    """transformers with its own attention and its own full cache, prefilled once and copied for each question."""

    def __init__(self, folder: Path, context_ids: list[int], end_ids: tuple[int, ...]) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
        self.context, self.end_ids = context_ids, end_ids
        self.name = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        self.cache = transformers.DynamicCache(config=self.model.config)
        self.model(torch.tensor([context_ids]), **{self.name: self.cache}, logits_to_keep=1)

    def answer(self, question: list[int], max_new_tokens: int) -> list[int]:
        ids = torch.tensor([self.context + question])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **{self.name: copy.deepcopy(self.cache)},
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=list(self.end_ids),
            pad_token_id=0,
        )
        new = out[0, ids.shape[1] :].tolist()
        return [i for i in new if i not in self.end_ids]


def generator_for(model: LanguageModel, archive: Archive) -> FullCacheGenerator:
    assert archive.token_ids is not None
    return FullCacheGenerator(model.source.folder, archive.token_ids.tolist(), seam_of(archive.manifest).stop_ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_kept_equals_transformers_generate(tmp_path, family):
    model = load_model(str(make_model_folder(tmp_path, family)), "cpu", "float32")
    archive = compress(TEXT, model, ratio=1.0)
    reference = generator_for(model, archive)
    for question in ("Where is the key?", "x", " two spaces  before", "När går färjan? 🙂"):
        ids = question_ids(model.tokenizer, seam_of(archive.manifest), question)
        assert list(archive.ask(question, 24).ids) == reference.answer(ids, 24)


@pytest.mark.model
@pytest.mark.parametrize("name", ["meeting", "manual"])
def test_embedded_model_answers_as_transformers_does(embedded, name):
    text, questions = example(name)
    archive = compress(text, embedded, ratio=1.0)
    reference = generator_for(embedded, archive)
    assert len(questions) == 10
    for entry in questions:
        ids = question_ids(embedded.tokenizer, seam_of(archive.manifest), entry["question"])
        assert list(archive.ask(entry["question"], 20).ids) == reference.answer(ids, 20), entry["id"]


LOGITS_SCRIPT = """
import os, sys, torch, kvz
from tests.conftest import TEXT
from tests.decode.test_generate import first_logits
model = kvz.load_model(sys.argv[2], "cpu", "float32")
if os.path.exists(sys.argv[1]):
    archive = kvz.load(sys.argv[1])
else:
    archive = kvz.compress(TEXT * 8, model, ratio=0.3)
    archive.save(sys.argv[1])
pairs = [(layer.keys, layer.values, layer.positions) for layer in archive.cache.layers]
torch.save((pairs, first_logits(archive, model)), sys.argv[3])
"""


def first_logits(archive: Archive, model: LanguageModel) -> torch.Tensor:
    """Logits after a question of many tokens and after two more tokens, `[3, vocabulary]`."""
    from kvz.cache.tail import Tail
    from kvz.decode.decoding import dense_reading
    from tests.decode.ragged import feed

    tail = Tail(model.geometry.shapes, 60, model.dtype, model.device)
    reading, rows = dense_reading(archive.cache), []
    for part in (question_ids(model.tokenizer, seam_of(archive.manifest), "Who keeps the ledger?"), [7], [9]):
        rows.append(feed(model, reading, tail, part))
    return torch.stack(rows)


def from_another_process(folder: Path, model_folder: Path, **environment: str) -> Any:
    """The pairs and `first_logits` of `a.kvz` as a process of its own has them; it makes the file if there is none."""
    command = [sys.executable, "-c", LOGITS_SCRIPT, str(folder / "a.kvz"), str(model_folder), str(folder / "out.pt")]
    subprocess.run(command, check=True, env={**os.environ, **environment})
    return torch.load(folder / "out.pt")


def test_loaded_in_another_process_gives_the_same_bits(tmp_path, tiny_folder):
    (made, logits), (loaded, again) = (
        from_another_process(tmp_path, tiny_folder, NUMBA_DISABLE_JIT="1") for _ in range(2)
    )
    for ours, theirs in zip(made, loaded, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(logits, again)


def test_kernels_give_the_same_logits_in_another_process(tmp_path, tiny, tiny_folder):
    archive = compress(TEXT * 8, tiny, ratio=0.3)
    archive.save(tmp_path / "a.kvz")
    _, logits = from_another_process(tmp_path, tiny_folder)
    expected = first_logits(archive, tiny)
    assert torch.equal(logits[0], expected[0])
    # Steps by kernels have been seen to differ in the last bit between processes, now and then; why is not known.
    assert_near(logits, expected, forward_terms(tiny.identity.config, 8 * len(TEXT)), size=NETWORK)


def test_asking_a_b_a_gives_the_answer_to_a_twice(tmp_path, tiny):
    archive = compress(TEXT, tiny, ratio=0.3)
    archive.save(tmp_path / "a.kvz")
    loaded = kvz.load(tmp_path / "a.kvz")
    session = loaded.session(tiny)
    data = (tmp_path / "a.kvz").read_bytes()
    first = session.ask("Where is the key?", 20)
    other = session.ask("When does the ferry leave, and from where, and what does it cost?", 30)
    again = session.ask("Where is the key?", 20)
    assert first.ids == again.ids
    assert first.ids != other.ids
    assert first.ids == archive.ask("Where is the key?", 20).ids
    assert (tmp_path / "a.kvz").read_bytes() == data


def test_three_documents_in_a_row(tiny):
    texts = ["One short line.", TEXT, TEXT[::-1]]
    once = [compress(text, tiny, ratio=0.5).ask("What?", 8).ids for text in texts]
    again = [compress(text, tiny, ratio=0.5).ask("What?", 8).ids for text in texts]
    assert once == again
    assert len(set(once)) == 3


def test_memory_falls_with_the_ratio(tiny):
    text = TEXT * 6
    full, third = (compress(text, tiny, ratio=r).cache for r in (1.0, 0.3))
    prefix = 3 * 2 * len(compress("x", tiny, ratio=1.0).token_ids[:-1])
    assert third.pairs - prefix == round(0.3 * (full.pairs - prefix))
    assert third.nbytes < 0.36 * full.nbytes
