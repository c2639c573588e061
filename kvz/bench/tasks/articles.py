"""Question answering over paragraphs, read from files in SQuAD v1.1's or HotpotQA's layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvz.bench.tasks.rows import Row, bad_data, read_json, read_rows
from kvz.bench.tasks.task import Question
from kvz.errors import UsageError

__all__ = ["Asked", "Paragraph", "read_articles", "read_asked"]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph and the questions that it answers."""

    text: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Asked:
    """A question, the paragraphs that hold the answer, and others that are close to it."""

    question: Question
    needed: tuple[str, ...]
    others: tuple[str, ...]


def read_articles(source: Path) -> list[list[Paragraph]]:
    """The articles of a file in SQuAD v1.1's layout, or of a hub's data set with its flat rows.

    Questions without an answer are left out. Raises UsageError.
    """
    if not source.exists():
        return _from_flat(read_rows(source))
    return _from_squad(read_json(source), source)


def read_asked(source: Path) -> list[Asked]:
    """The questions of a file in SQuAD v1.1's layout (a paragraph each) or HotpotQA's (two of ten).

    Raises UsageError.
    """
    if not source.exists():
        return _of_articles(_from_flat(read_rows(source)))
    data = read_json(source)
    if isinstance(data, list):
        return _some([_from_hotpot(item, source, number) for number, item in enumerate(data, 1)], source)
    return _of_articles(_from_squad(data, source))


def _from_squad(data: Any, source: Path) -> list[list[Paragraph]]:
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise bad_data(source, "SQuAD v1.1", 'no list "data" in it')
    articles = []
    for number, entry in enumerate(entries, 1):
        paragraphs = entry.get("paragraphs") if isinstance(entry, dict) else None
        if not isinstance(paragraphs, list):
            raise bad_data(source, "SQuAD v1.1", f'article {number} has no list "paragraphs"')
        where = f"article {number}, paragraph"
        articles.append([_paragraph(p, source, f"{where} {n}") for n, p in enumerate(paragraphs, 1)])
    return _with_questions(articles, source)


def _paragraph(entry: Any, source: Path, where: str) -> Paragraph:
    try:
        questions = [(qa["question"], [answer["text"] for answer in qa["answers"]]) for qa in entry["qas"]]
        return Paragraph(_text(entry["context"]), _questions(questions))
    except (KeyError, TypeError) as error:
        raise bad_data(source, "SQuAD v1.1", f"{where}: {_reason(error)}") from None


def _from_flat(rows: list[Row]) -> list[list[Paragraph]]:
    """SQuAD's rows as hubs have them: one question each, with its title and its paragraph."""
    articles: dict[str, dict[str, list[tuple[str, list[str]]]]] = {}
    for row in rows:
        answers = row.fields.get("answers")
        texts = answers.get("text") if isinstance(answers, dict) else None
        if not isinstance(texts, list):
            raise UsageError(f'{row.where}: no "answers" with a list "text"')
        article = articles.setdefault(row.text("title"), {})
        article.setdefault(row.text("context"), []).append((row.text("question"), texts))
    made = [[Paragraph(text, _questions(asked)) for text, asked in article.items()] for article in articles.values()]
    return _with_questions(made, Path("the data set"))


def _from_hotpot(item: Any, source: Path, number: int) -> Asked:
    try:
        names = {title for title, _ in item["supporting_facts"]}
        paragraphs = [(title, f"{title}\n{''.join(sentences).strip()}") for title, sentences in item["context"]]
        question = Question(_text(item["question"]), (_text(item["answer"]),))
    except (KeyError, TypeError, ValueError) as error:
        raise bad_data(source, "HotpotQA", f"question {number}: {_reason(error)}") from None
    needed = tuple(text for title, text in paragraphs if title in names)
    if not needed:
        raise bad_data(source, "HotpotQA", f"question {number}: no paragraph is a supporting one")
    return Asked(question, needed, tuple(text for title, text in paragraphs if title not in names))


def _of_articles(articles: list[list[Paragraph]]) -> list[Asked]:
    flat = [
        (article, paragraph, question)
        for article in articles
        for paragraph in article
        for question in paragraph.questions
    ]
    return [
        Asked(question, (paragraph.text,), tuple(other.text for other in article if other is not paragraph))
        for article, paragraph, question in flat
    ]


def _questions(asked: list[tuple[str, list[str]]]) -> tuple[Question, ...]:
    return tuple(
        Question(_text(question), tuple(dict.fromkeys(map(_text, answers)))) for question, answers in asked if answers
    )


def _with_questions(articles: list[list[Paragraph]], source: Path) -> list[list[Paragraph]]:
    return _some([article for article in articles if any(p.questions for p in article)], source)


def _some(found: list[Any], source: Path) -> list[Any]:
    if not found:
        raise UsageError(f"{source} holds no question with an answer")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a text")
    return value


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
