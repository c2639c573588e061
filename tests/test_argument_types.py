"""Arguments of the Python API that are of a wrong type are refused by name, in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvz
from kvz.errors import KvzError, QuestionError, UsageError
from kvz.models.language_model import LanguageModel
from tests.conftest import TEXT

Calls = dict[str, list[Callable[..., Any]]]
QUESTION = "Who keeps the ledger?"
WRONG: dict[str, dict[str, list[Any]]] = {
    "compress": {
        "document": [None, 7, b"text", ["text"]],
        "model": [7, b"model", ["model"]],
        "ratio": ["0.3", [0.3], True, 1j],
        "budget": ["9", 9.5, True, [9]],
        "method": [7, ["kvzip"], kvz.Sampling],
        "allocation": [7, ["uniform"]],
        "floor": ["0.2", [0.2], True],
        "keep_recent": ["9", None, 9.5, True],
        "protect": [7, None, [7], {"a": 1}],
        "system": [7, b"text", ["text"]],
        "truncate": [7, True, ["head"]],
        "include_text": ["no", None, 1],
        "offload": ["no", None, 1],
        "keep_newlines": ["no", None, 1],
        "index": [7, "planes", True],
        "device": [7, None],
        "dtype": [7, None],
        "progress": [7, print],
    },
    "load": {"path": [None, 7, b"a.kvz"], "verify": ["no", None, 1], "mmap": ["no", 1]},
    "load_model": {"name": [7, b"model", ["model"]], "device": [7, None], "dtype": [7, None], "say": [7, None]},
    "ask": {
        "question": [None, 7, b"text", ["text"]],
        "max_new_tokens": ["9", None, 9.5, True],
        "sampling": [0.7, "greedy", kvz.Decoding()],
        "stream": [7, None, "yes"],
    },
    "ask_all": {
        "questions": [None, 7, "text"],
        "max_new_tokens": ["9", None, 9.5, True],
        "sampling": [0.7, "greedy"],
        "size": ["2", 2.5, True, 0],
        "reading": ["dense", kvz.Decoding()],
    },
    "session": {"model": ["model", 7], "decoding": ["dense", 9, kvz.Sampling()]},
    "save": {"path": [None, 7, b"a.kvz"], "overwrite": ["no", None, 1], "progress": [7, print]},
    "read": {"decoding": ["dense", None, kvz.Sampling()]},
    "Conversation": {"session": [None, "session"]},
    "Sampling": {
        "temperature": ["0.7", None, True],
        "top_p": ["0.7", True],
        "top_k": ["7", 7.5, True],
        "seed": ["7", 7.5, True],
    },
    "Decoding": {"policy": [7, None, ["dense"]], "budget": ["9", 64.0, True], "page_size": ["4", 4.0, True]},
}
CASES = [(call, name, value) for call, names in WRONG.items() for name, values in names.items() for value in values]


@pytest.fixture(scope="module")
def archive(tiny: LanguageModel) -> kvz.Archive:
    return kvz.compress(TEXT, tiny)


@pytest.fixture(scope="module")
def calls(
    archive: kvz.Archive, tiny: LanguageModel, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Calls:
    """What takes arguments, each with the ones that it needs."""
    path = tmp_path_factory.mktemp("types") / "a.kvz"
    archive.save(path)
    session, talk = archive.session(), kvz.Conversation(archive.session())
    return {
        "compress": [lambda **own: kvz.compress(**{"document": TEXT, "model": tiny, **own})],
        "load": [lambda **own: kvz.load(**{"path": path, **own})],
        "load_model": [lambda **own: kvz.load_model(**{"name": tiny_folder, **own})],
        "ask": [_asking(asker.ask) for asker in (archive, session, talk)],
        "ask_all": [lambda **own: list(session.ask_all(**{"questions": [QUESTION], "max_new_tokens": 2, **own}))],
        "session": [archive.session],
        "save": [lambda **own: archive.save(**{"path": path, "overwrite": True, **own})],
        "read": [session.read, talk.read],
        "Conversation": [kvz.Conversation],
        "Sampling": [kvz.Sampling],
        "Decoding": [lambda **own: kvz.Decoding(**{"budget": 64, **own})],
    }


def _asking(ask: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **own: ask(**{"question": QUESTION, "max_new_tokens": 2, **own})


@pytest.mark.parametrize(("call", "name", "value"), CASES, ids=lambda part: repr(part)[:24])
def test_a_wrong_type_is_refused_by_name(
    calls: dict[str, list[Callable[..., Any]]], call: str, name: str, value: Any
) -> None:
    for function in calls[call]:
        with pytest.raises(KvzError) as caught:
            function(**{name: value})
        assert isinstance(caught.value, QuestionError if name == "question" else UsageError)
        message = str(caught.value).replace("batch", "size")
        assert "\n" not in message
        assert len(message) < 200
        assert name.replace("_", " ") in message.replace("-", " ").replace("_", " "), message


def test_every_argument_has_a_case() -> None:
    functions = {
        "compress": [kvz.compress],
        "load": [kvz.load],
        "load_model": [kvz.load_model],
        "ask": [kvz.Archive.ask, kvz.Session.ask, kvz.Conversation.ask],
        "ask_all": [kvz.Session.ask_all],
        "session": [kvz.Archive.session],
        "save": [kvz.Archive.save],
        "read": [kvz.Session.read, kvz.Conversation.read],
        "Conversation": [kvz.Conversation],
        "Sampling": [kvz.Sampling],
        "Decoding": [kvz.Decoding],
    }
    taken = {
        call: {n for f in own for n in inspect.signature(f).parameters} - {"self"} for call, own in functions.items()
    }
    assert taken == {call: set(names) for call, names in WRONG.items()}


def test_numbers_of_other_libraries_are_numbers(tiny: LanguageModel, archive: kvz.Archive) -> None:
    import numpy as np

    same = kvz.compress(TEXT, tiny, ratio=np.float32(0.3), keep_recent=np.int64(4), floor=np.float64(0.2))
    assert same.manifest.prompt == archive.manifest.prompt
    assert archive.ask(QUESTION, 2, kvz.Sampling(np.float32(0.5))).new_tokens == 2


def test_the_arguments_that_stood_for_others() -> None:
    with pytest.raises(UsageError, match=r"sampling is of type float; give a kvz\.Sampling"):
        kvz.Archive.ask(None, QUESTION, 9, 0.7)  # type: ignore[arg-type]
