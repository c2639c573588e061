"""Which cells there are, and which of them are impossible."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvz.bench.methods import parse_methods
from kvz.bench.plan import Planned, check_protocol, plan_cells
from kvz.bench.settings import make_settings
from kvz.bench.tasks.registry import make_task
from kvz.errors import UsageError


def planned(tasks: str, methods: str, protocol: str = "auto", lengths: tuple[int, ...] = (1000,)) -> list[Planned]:
    made = [make_task(name) for name in tasks.split()]
    return plan_cells(made, lengths, parse_methods(methods.split()), protocol, {t.name: 3 for t in made}, 2048)


def shown(cells: list[Planned]) -> list[tuple[str, str, str]]:
    return [(cell.task, cell.protocol, cell.method.label) for cell in cells]


def test_each_protocol_begins_with_the_full_cache() -> None:
    assert shown(planned("needle", "snapkv full rocketkv")) == [
        ("needle", "single-shot", label) for label in ("full", "full@repeat-kv", "snapkv@0.3", "rocketkv@256")
    ]
    assert shown(planned("key-value", "snapkv rocketkv")) == [
        *(("key-value", "multi-query", label) for label in ("full", "full@repeat-kv", "snapkv@0.3")),
        *(("key-value", "single-shot", label) for label in ("full", "full@repeat-kv", "rocketkv@256")),
    ]
    assert {protocol for _, protocol, _ in shown(planned("key-value", "rocketkv"))} == {"single-shot"}
    assert {protocol for _, protocol, _ in shown(planned("key-value-turns", "snapkv rocketkv"))} == {"multi-turn"}
    assert [cell.length for cell in planned("needle", "full", lengths=(500, 100))] == [500, 500, 100, 100]


@pytest.mark.parametrize(
    ("tasks", "method", "protocol", "length", "reason"),
    [
        ("needle", "snapkv", "auto", 2040, "2048 positions"),
        ("needle", "hsa@512", "auto", 512, "read densely"),
        ("needle", "snapkv@512", "auto", 512, "full cache"),
        ("key-value", "rocketkv", "multi-query", 1000, "chooses by the question"),
        ("needle", "kvzip", "multi-turn", 1000, "no turns"),
        ("multi-hop-turns", "kvzip", "single-shot", 1000, "do not stand alone"),
    ],
)
def test_what_is_impossible_says_why(tasks: str, method: str, protocol: str, length: int, reason: str) -> None:
    cell = planned(tasks, method, protocol, (length,))[-1]
    assert reason in str(cell.skipped)


def test_what_can_be_measured_is_not_skipped() -> None:
    for protocol in ("single-shot", "multi-query", "auto"):
        assert [cell.skipped for cell in planned("key-value", "snapkv hsa@256", protocol)] == [None] * 4
    snapkv = planned("key-value", "snapkv kvzip", "single-shot")[2:]
    assert [cell.sees_questions for cell in snapkv] == [True, False]
    with pytest.raises(UsageError, match="single-shot"):
        check_protocol("multi")


def test_settings_without_words_are_a_quick_run(tmp_path: object) -> None:
    settings = make_settings()
    assert [task.name for task in settings.tasks] == ["needle", "needles"]
    assert settings.lengths == (1000,)
    assert make_settings(["needle"]).lengths == (2000,)
    assert make_settings(["needle"], quick=True).samples == {"needle": 3}
    for options in (
        {"tasks": ["nedle"]},
        {"tasks": ["squad"]},
        {"samples": 0},
        {"lengths": [0]},
        {"seed": -1},
        {"methods": ["hsa@64"], "ratios": [0.3]},
        {"methods": ["kvzip@0.3"], "budgets": [64]},
        {"protocol": "one"},
    ):
        with pytest.raises(UsageError):
            make_settings(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"ratios": [ratio]}, f"--ratio {ratio:g}: give a number above 0 and up to 1") for ratio in (1.5, 0, -1)),
        *(({"ratios": [float(ratio)]}, f"--ratio {ratio}: give a number above 0") for ratio in ("nan", "inf")),
        ({"ratios": [100], "methods": ["kvzip"]}, "--ratio 100: give"),
        ({"budgets": [0]}, "--budget 0: give a whole number of pairs, 2 or more"),
        ({"budgets": [1], "methods": ["kvzip"]}, "--budget 1: give"),
        ({"samples": 0}, "--samples 0: give a number from 1"),
        ({"samples": 10**9}, "--samples 1000000000: give"),
        ({"ratios": [0.3], "methods": ["kvzip@0.3"]}, "--ratio is for methods that compress and have no number"),
        ({"ratios": [0.3], "budgets": [64], "methods": ["kvzip"]}, "--budget is for methods that have no number"),
        ({"methods": ["kvzip@"]}, "no number after @"),
    ],
)
def test_numbers_out_of_range_are_refused_by_option(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        make_settings(**options)


def test_a_ratio_works_as_typed() -> None:
    settings = make_settings(methods=["kvzip", "hsa"], ratios=[0.3333333], budgets=[64])
    assert [method.label for method in settings.methods] == ["kvzip@0.3333333", "hsa@64"]
