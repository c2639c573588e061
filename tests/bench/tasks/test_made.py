"""Tasks made here: a solver of a few lines finds every answer in the context, which has the length asked for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable

import pytest

from kvz.bench.tasks.registry import RULER, make_task, needs_data, task_names
from kvz.bench.tasks.task import Sample
from kvz.errors import UsageError
from tests.bench.tasks.conftest import words

MADE = [name for name in task_names() if not needs_data(name)]


def solve_needle(context: str, question: str) -> list[str]:
    [key] = re.findall(r"called (\S+)\?", question)
    return re.findall(rf"locker called {key} is (\d+)\.", context)


def solve_niah(context: str, question: str) -> list[str]:
    hidden = re.findall(r"The secret (?:number|identifier) of (\S+) is (\S+)\.", context)
    return [value for key, value in hidden if re.search(rf"\b{key}\b", question)]


def solve_variables(context: str, question: str) -> list[str]:
    given = dict(re.findall(r"Variable (\w+) = (\w+)\.", context))
    [value] = re.findall(r"\d{5}", question)

    def resolve(name: str) -> str:
        return resolve(given[name]) if name in given else name

    return [name for name in given if resolve(name) == value]


def solve_common(context: str, question: str) -> list[str]:
    found = Counter(re.findall(r"\d+\. (\S+-\S+)", context)).most_common(11)
    assert len(found) == 10 or found[9][1] > found[10][1]
    return [word for word, _ in found[:10]]


def solve_frequent(context: str, question: str) -> list[str]:
    found = Counter(word for word in context.rpartition("\n\n")[2].split() if word != "...").most_common(4)
    assert found[2][1] > found[3][1]
    return [word for word, _ in found[:3]]


def solve_key(context: str, question: str) -> list[str]:
    [key] = re.findall('key "(.+)"', question)
    return [json.loads(context[context.index("{") : context.index("}") + 1])[key]]


def solve_ends(context: str, question: str) -> list[str]:
    start, end = re.findall('"(.+?)"', question)
    lines = [line for line in context.split("\n") if re.fullmatch("[a-z]{16}", line)]
    assert sum(line.startswith(start) for line in lines) == sum(line.endswith(end) for line in lines) == 2
    return [line for line in lines if line.startswith(start) and line.endswith(end)]


def solve_hops(context: str, question: str) -> list[str]:
    leads = dict(re.findall(r"(\S+) leads to (\S+)\.", context))
    at, hops = re.findall(r"Start at (\S+)", question)[0], 0
    while at in leads:
        at, hops = leads[at], hops + 1
    assert hops == 3
    return [at]


SOLVERS: dict[str, Callable[[str, str], list[str]]] = {
    "needle": solve_needle,
    "ruler-niah": solve_niah,
    "ruler-variable": solve_variables,
    "ruler-common": solve_common,
    "ruler-frequent": solve_frequent,
    "key-value": solve_key,
    "prefix-suffix": solve_ends,
    "multi-hop": solve_hops,
}


def check(name: str, sample: Sample) -> None:
    [solver] = [solver for start, solver in SOLVERS.items() if name.startswith(start)]
    for question in sample.questions:
        assert sorted(solver(sample.context, question.text)) == sorted(question.answers)
        assert all(sample.context.count(answer) for answer in question.answers)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("tokens", [500, 1300, 4096, 8000])
def test_contexts_have_their_length_and_answers(name, tokens, counter):
    calls = 0

    def counted(text: str) -> int:
        nonlocal calls
        calls += 1
        return counter(text)

    samples = make_task(name).samples(counted, tokens, 2, seed=tokens)
    assert calls <= 2 * 12
    assert len(samples) == 2
    for sample in samples:
        assert abs(counter(sample.context) - tokens) <= tokens * 0.02
        assert sample.facts["length"] == tokens
        check(name, sample)


@pytest.mark.parametrize("name", MADE)
def test_the_seed_decides(name):
    task = make_task(name)
    first, again, other = (task.samples(words, 700, 3, seed) for seed in (1, 1, 2))
    assert first == again
    assert len({sample.context for sample in [*first, *other]}) == 6
    assert task.samples(words, 700, 1, 1)[0].questions == first[0].questions


@pytest.mark.parametrize("name", MADE)
def test_a_task_says_what_it_is(name):
    task = make_task(name)
    [sample] = task.samples(words, 700, 1, 0)
    assert task.name == name
    assert task.shared == (len(sample.questions) > 1)
    assert task.turns == name.endswith("-turns")
    assert task.metric.score(", ".join(sample.questions[0].answers), sample.questions[0]) == 1
    assert task.metric.score("I do not know.", sample.questions[0]) == 0
    assert task.new_tokens >= 32
    assert "made here" in task.licence


def test_turns_are_the_same_questions():
    for name in ("key-value", "prefix-suffix", "multi-hop"):
        alone, turns = (make_task(full).samples(words, 800, 2, 3) for full in (name, f"{name}-turns"))
        assert alone == turns


def test_ruler_has_thirteen_tasks():
    assert len(RULER) == 13
    assert "ruler" not in RULER


@pytest.mark.parametrize(
    ("name", "hidden", "answers"),
    [("single-1", 1, 1), ("multikey-1", 4, 1), ("multivalue", 4, 4), ("multiquery", 4, 4)],
)
def test_needles_are_as_many_as_in_ruler(name, hidden, answers):
    [sample] = make_task(f"ruler-niah-{name}").samples(words, 900, 1, 0)
    assert sample.context.count("The secret number of") == hidden
    assert len(sample.questions[0].answers) == answers


@pytest.mark.parametrize("name", ["multikey-2", "multikey-3"])
def test_needles_among_needles_have_keys_of_their_own(name):
    [sample] = make_task(f"ruler-niah-{name}").samples(words, 9000, 1, 0)
    keys = re.findall(r"of (\S+) is", sample.context)
    assert len(keys) > 1000
    assert len(set(keys)) == len(keys)


def test_needles_lie_at_even_depths():
    """As near as the edge of a sentence: half of the longest one, in characters."""
    samples = make_task("needle").samples(words, 3000, 5, 0)
    assert [sample.facts["depth"] for sample in samples] == [0, 0.25, 0.5, 0.75, 1]
    for sample in samples:
        before, needle, after = re.split(r"(The number of the locker called \S+ is \d+\.)", sample.context)
        depth = sample.facts["depth"]
        assert abs(len(before) - depth * (len(before) + len(after))) <= 200
        assert not before or re.search(r"[.!?)\w]\s+$", before)
        assert needle
    assert samples[0].context.startswith("The number of the locker")
    assert samples[-1].context.endswith(".")
    assert [sample.facts["depth"] for sample in make_task("needle").samples(words, 500, 1, 0)] == [0.5]


@pytest.mark.parametrize("name", ["key-value", "ruler-common-words", "ruler-niah-multiquery"])
def test_a_context_too_short_for_the_task_is_refused(name):
    with pytest.raises(UsageError, match=r"contexts of 15 tokens are too short .* it needs \d+ at least"):
        make_task(name).samples(words, 15, 1, 0)


def test_words_that_cannot_be_told_apart_are_refused():
    with pytest.raises(UsageError, match="60 tokens are too few to tell the words apart"):
        make_task("ruler-frequent-words").samples(words, 60, 1, 0)
