"""What fidelity is measured on: contexts, each with several questions and their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvz.errors import UsageError

__all__ = ["Reading", "read_articles", "read_examples"]


@dataclass(frozen=True)
class Reading:
    """A context and the (question, gold answer) pairs asked of it."""

    name: str
    text: str
    questions: tuple[tuple[str, str], ...]


def read_articles(path: Path, first: int, last: int, together: int, questions: int) -> list[Reading]:
    """Articles first:last of a file in SQuAD v1.1's layout, `together` of them a context, `questions` of each article.

    The questions are spread evenly over the article. Raises UsageError if the file is not of that layout.
    """
    try:
        articles = json.loads(path.read_text(encoding="utf-8"))["data"][first:last]
        parsed = [_article(article, questions) for article in articles]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{path} is not a file in SQuAD v1.1's layout: {error!r}") from error
    groups = [parsed[start : start + together] for start in range(0, len(parsed), together)]
    return [_joined(group) for group in groups]


def read_examples(folder: Path, questions: int) -> list[Reading]:
    """The example documents, each a context. Raises UsageError if there are none."""
    readings = []
    for path in sorted(folder.glob("*.txt")):
        lines = path.with_suffix(".questions.jsonl").read_text(encoding="utf-8").splitlines()
        asked = tuple((item["question"], item["answer"]) for item in map(json.loads, lines))
        readings.append(Reading(path.stem, path.read_text(encoding="utf-8"), asked[:questions]))
    if not readings:
        raise UsageError(f"no example documents in {folder}; run this in a clone of the repository, or give --data")
    return readings


def _article(article: dict[str, object], questions: int) -> Reading:
    paragraphs = article["paragraphs"]
    assert isinstance(paragraphs, list)
    text = "\n\n".join(paragraph["context"] for paragraph in paragraphs)
    asked = [(qa["question"], qa["answers"][0]["text"]) for paragraph in paragraphs for qa in paragraph["qas"]]
    step = max(1, len(asked) // questions)
    return Reading(str(article["title"]), text, tuple(asked[::step][:questions]))


def _joined(group: list[Reading]) -> Reading:
    name = " + ".join(reading.name for reading in group)
    text = "\n\n".join(reading.text for reading in group)
    return Reading(name, text, tuple(question for reading in group for question in reading.questions))
