"""One model, archive or session used in several threads at once gives what it gives one call after another."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from transformers.utils import logging

import kvz
from kvz.config import POLICIES
from kvz.models.cache_folder import build_once
from kvz.models.language_model import LanguageModel
from kvz.models.quiet import quiet_transformers
from kvz.scoring.registry import METHODS
from tests.conftest import TEXT
from tests.sentencepiece import make_blank_tokenizer
from tests.tiny import make_model_folder, make_tokenizer, wrapped

THREADS = 4
TEXTS = [TEXT.replace("harbour", name).replace("blue", colour) for name, colour in zip(
    ("harbour", "customs", "station", "theatre"), ("blue", "grey", "teal", "pink"), strict=True
)]  # fmt: skip
QUESTIONS = ["Where is the key?", "Who?", "When does the ferry leave, and what does it cost?", "What is blue?"]
DECODINGS = [kvz.Decoding(), *(kvz.Decoding(policy, 48) for policy in POLICIES)]
Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def _hasty_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*calls: Callable[[], Result]) -> list[Result]:
    """What calls return that begin at once, each in a thread of its own."""
    start = threading.Barrier(len(calls))

    def begun(call: Callable[[], Result]) -> Result:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begun, calls))


def compressing(model: LanguageModel, text: str, method: str = "kvzip-rms") -> Callable[[], kvz.Archive]:
    return lambda: kvz.compress(text, model, ratio=0.3, method=method)


def contents(archive: kvz.Archive) -> list[torch.Tensor]:
    """Everything that an archive kept."""
    layers = archive.cache.layers
    return [tensor for x in layers for tensor in (x.offsets, x.positions, x.keys, x.values)]


def assert_same(archives: list[kvz.Archive], expected: list[kvz.Archive]) -> None:
    for archive, other in zip(archives, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(contents(archive), contents(other), strict=True))


def test_the_texts_differ_and_are_of_one_length(tiny: LanguageModel) -> None:
    """Else threads that took each other's scores would not be noticed."""
    archives = [compressing(tiny, text)() for text in TEXTS]
    assert len({archive.manifest.prompt.context_tokens for archive in archives}) == 1
    kept = [torch.cat([layer.positions for layer in archive.cache.layers]) for archive in archives]
    assert not any(torch.equal(kept[0], other) for other in kept[1:])


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"duo", "full", "kvzip-head"}))
def test_compressing_with_one_model(tiny: LanguageModel, method: str) -> None:
    calls = [compressing(tiny, text, method) for text in TEXTS]
    expected = [call() for call in calls]
    for _ in range(2):
        assert_same(together(*calls), expected)


def test_compressing_while_another_thread_asks(tiny: LanguageModel) -> None:
    asked = compressing(tiny, TEXTS[0])()
    calls = [compressing(tiny, text) for text in TEXTS[1:]]
    expected = [call() for call in calls]
    answers = [asked.ask(question, 20) for question in QUESTIONS]
    archives: list[kvz.Archive] = []

    def ask_all() -> list[kvz.Answer]:
        return [asked.ask(question, 20) for question in QUESTIONS]

    def compress_all() -> None:
        archives.extend(call() for call in calls)

    said = together(ask_all, compress_all, ask_all)
    assert_same(archives, expected)
    for own in (said[0], said[2]):
        assert own is not None
        assert [answer.ids for answer in own] == [answer.ids for answer in answers]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_two_models(tiny_folder: Path, tmp_path: Path, dtype: str) -> None:
    folders = [tiny_folder, make_model_folder(tmp_path, "qwen3", seed=1)]
    models = [kvz.load_model(folder, "cpu", dtype) for folder in folders]
    calls = [compressing(model, text) for model in models for text in TEXTS[:2]]
    assert_same(together(*calls), [call() for call in calls])


def test_models_are_loaded_at_once(tiny_folder: Path) -> None:
    models = together(*[lambda: kvz.load_model(tiny_folder, "cpu", "float32")] * THREADS)
    expected = compressing(models[0], TEXT)()
    assert_same([compressing(model, TEXT)() for model in models[1:]], [expected] * (THREADS - 1))


@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda decoding: str(decoding.policy))
def test_asking_one_archive(tiny: LanguageModel, decoding: kvz.Decoding) -> None:
    archive = kvz.compress(TEXT * 2, tiny, ratio=0.5)
    session = archive.session(tiny, decoding)
    sampling = kvz.Sampling(0.8, seed=1)
    expected = [session.ask(question, 20, sampling).ids for question in QUESTIONS]
    fresh = archive.session(tiny, decoding)  # so that what is made at the first question is made by all at once
    calls = [lambda question=question: fresh.ask(question, 20, sampling).ids for question in QUESTIONS]
    for _ in range(3):
        assert together(*calls) == expected


def test_asking_in_batches_and_in_conversations(tiny: LanguageModel) -> None:
    session = compressing(tiny, TEXT)().session()

    def batch() -> list[tuple[int, ...]]:
        return [answer.ids for answer in session.ask_all(QUESTIONS, 12) if isinstance(answer, kvz.Answer)]

    def talk() -> list[tuple[int, ...]]:
        conversation = kvz.Conversation(session)
        return [conversation.ask(question, 12).ids for question in QUESTIONS]

    expected = [batch(), talk()]
    assert together(batch, talk, batch, talk) == expected * 2


def test_each_thread_gets_the_session_that_it_asked_for(tiny: LanguageModel) -> None:
    archive = kvz.compress(TEXT * 2, tiny, ratio=0.5)
    calls = [lambda decoding=decoding: archive.session(tiny, decoding).policy for decoding in DECODINGS[1:5]]
    for _ in range(20):
        assert together(*calls) == [decoding.policy for decoding in DECODINGS[1:5]]


def test_an_archive_loads_its_model_once(tiny: LanguageModel, tmp_path: Path) -> None:
    compressing(tiny, TEXT)().save(tmp_path / "a.kvz")
    archive = kvz.load(tmp_path / "a.kvz")
    sessions = together(*[archive.session] * THREADS)
    assert all(session is sessions[0] for session in sessions)


def test_the_umask_is_never_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: LanguageModel) -> None:
    """It is the process's: a file that another thread makes meanwhile would be open to all."""
    expected = _modes_of_new_things(tmp_path)
    archive = compressing(tiny, TEXT)()
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was changed"))
    archive.save(tmp_path / "nameless.kvz")
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    archive.save(tmp_path / "named.kvz")
    built = build_once(tmp_path / "cache" / "built", _fill_privately)
    assert [(built / name).stat().st_mode for name in ("inner/file", "inner", "")] == [expected[0], *[expected[1]] * 2]
    assert {(tmp_path / f"{name}.kvz").stat().st_mode for name in ("nameless", "named")} == {expected[0]}


def _modes_of_new_things(folder: Path) -> tuple[int, int]:
    (folder / "file").touch()
    (folder / "folder").mkdir()
    return (folder / "file").stat().st_mode, (folder / "folder").stat().st_mode


def _fill_privately(partial: Path) -> None:
    (partial / "inner").mkdir(0o700)
    (partial / "inner" / "file").touch(0o600)


def test_how_loud_transformers_is_stays_as_it_was() -> None:
    before = logging.get_verbosity()
    logging.set_verbosity_info()
    inside = threading.Event()

    def first() -> None:
        with quiet_transformers():
            inside.set()
            left.wait(0.2)  # it comes only if both are inside at once

    def second() -> None:
        inside.wait()
        with quiet_transformers():
            left.set()
            done.wait(0.2)

    def last() -> None:
        left.wait()
        done.set()

    left, done = threading.Event(), threading.Event()
    try:
        together(first, second, last)
        assert logging.get_verbosity() == logging.INFO
    finally:
        logging.set_verbosity(before)


@pytest.mark.parametrize("kind", ["bytes", "prepend"])
def test_a_tokenizer_that_cuts_and_fills_is_used_by_all(kind: str) -> None:
    """Both are turned off once: to do it at the first text is to do it under other threads' hands."""
    made = make_tokenizer() if kind == "bytes" else make_blank_tokenizer(kind)
    want = wrapped(made).encode_plain(TEXT, continues=True)
    made.backend_tokenizer.enable_truncation(8)
    made.backend_tokenizer.enable_padding(length=4096)
    tokenizer = wrapped(made)
    assert together(*[lambda: tokenizer.encode_plain(TEXT, continues=True)] * THREADS) == [want] * THREADS
