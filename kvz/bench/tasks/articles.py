"""Question answering over paragraphs, read from files in SQuAD v1.1's or HotpotQA's layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvz.bench.tasks.rows import Row, as_texts, bad_data, check_text, read_json, read_rows
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
        where = f"{source} is not in SQuAD v1.1's layout: article {number}, paragraph"
        articles.append([_paragraph(_object(f"{where} {n}", p)) for n, p in enumerate(paragraphs, 1)])
    return _with_questions(articles, source)


def _paragraph(row: Row) -> Paragraph:
    asked = [_object(f"{row.where}, question {n}", qa) for n, qa in enumerate(_list(row, "qas"), 1)]
    questions = tuple(_question(qa) for qa in asked if _list(qa, "answers"))
    return Paragraph(row.filled("context"), questions)


def _question(row: Row) -> Question:
    """A question of SQuAD's with its answers, each of them once."""
    answers = [_object(f"{row.where}, answer {n}", item) for n, item in enumerate(_list(row, "answers"), 1)]
    return Question(row.filled("question"), tuple(dict.fromkeys(answer.filled("text") for answer in answers)))


def _from_flat(rows: list[Row]) -> list[list[Paragraph]]:
    """SQuAD's rows as hubs have them: one question each, with its title and its paragraph."""
    articles: dict[str, dict[str, list[Question]]] = {}
    for row in rows:
        answers = row.fields.get("answers")
        texts = answers.get("text") if isinstance(answers, dict) else None
        if not isinstance(texts, list):
            raise UsageError(f'{row.where}: no "answers" with a list "text"')
        asked = articles.setdefault(row.text("title"), {}).setdefault(row.filled("context"), [])
        if texts:
            right = as_texts(texts, f'{row.where}: "text" of "answers"')
            asked.append(Question(row.filled("question"), tuple(dict.fromkeys(right))))
    made = [[Paragraph(text, tuple(asked)) for text, asked in article.items()] for article in articles.values()]
    return _with_questions(made, Path("the data set"))


def _from_hotpot(item: Any, source: Path, number: int) -> Asked:
    row = _object(f"{source} is not in HotpotQA's layout: question {number}", item)
    names = {title for title, _ in _pairs(row, "supporting_facts", int)}
    paragraphs = [
        (title, f"{title}\n{''.join(sentences).strip()}") for title, sentences in _pairs(row, "context", list)
    ]
    needed = tuple(text for title, text in paragraphs if title in names)
    if not needed:
        raise UsageError(f"{row.where}: no paragraph is a supporting one")
    question = Question(row.filled("question"), (row.filled("answer"),))
    return Asked(question, needed, tuple(text for title, text in paragraphs if title not in names))


def _pairs(row: Row, name: str, kind: type) -> list[tuple[str, Any]]:
    """The list of titles there, each with a number or with a list of sentences."""
    pairs = []
    for number, item in enumerate(row.items(name), 1):
        where = f'{row.where}: "{name}" {number}'
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], kind)):
            raise UsageError(f"{where} is not a title with {'a number' if kind is int else 'a list of sentences'}")
        title, value = item
        for text in (title, *value) if isinstance(value, list) else (title,):
            if not isinstance(text, str):
                raise UsageError(f"{where} has a sentence that is not a text")
            check_text(text, where)
        pairs.append((title, value))
    return pairs


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


def _with_questions(articles: list[list[Paragraph]], source: Path) -> list[list[Paragraph]]:
    return _some([article for article in articles if any(p.questions for p in article)], source)


def _some(found: list[Any], source: Path) -> list[Any]:
    if not found:
        raise UsageError(f"{source} holds no question with an answer")
    return found


def _object(where: str, value: object) -> Row:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not an object")
    return Row(where, value)


def _list(row: Row, name: str) -> list[Any]:
    """The list there, which may be empty."""
    return [] if row.fields.get(name) == [] else row.items(name)
