"""What counts tokens in these tests (words, and the embedded model's tokenizer), and files for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvz.bench.tasks.task import Counter
from kvz.errors import ModelError


def words(text: str) -> int:
    return len(text.split())


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def filler(number: int, count: int = 40) -> str:
    return " ".join(f"p{number}w{word}" for word in range(count))


@pytest.fixture(scope="session", params=["words", "tokenizer"])
def counter(request: pytest.FixtureRequest) -> Counter:
    """Each way to count; the tokenizer's tests are skipped where it cannot be fetched."""
    if request.param == "words":
        return words
    from kvz.models.embedded import embedded_folder
    from kvz.models.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.load(embedded_folder(lambda message: None))
    except ModelError as error:
        pytest.skip(str(error))
    return lambda text: len(tokenizer.encode_plain(text))
