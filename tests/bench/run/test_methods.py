"""What a method's name means, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvz.bench.methods import Method, method_names, parse_methods, same_methods
from kvz.errors import UsageError
from kvz.scoring.budget import Budget


def labels(*specs: str, ratios: tuple[float, ...] = (), budgets: tuple[int, ...] = ()) -> list[str]:
    return [method.label for method in parse_methods(specs, ratios, budgets)]


def test_numbers_that_are_left_out_are_those_given_for_all() -> None:
    assert labels("kvzip", "quest") == ["kvzip@0.3", "quest@256"]
    assert labels("kvzip", "quest", ratios=(0.5, 0.1), budgets=(64,)) == ["kvzip@0.5", "kvzip@0.1", "quest@64"]
    assert labels("snapkv", "rocketkv", budgets=(64, 128)) == ["snapkv@64", "snapkv@128", "rocketkv@64", "rocketkv@128"]
    assert labels("kvzip/hsa", ratios=(0.5, 0.2), budgets=(64,)) == ["kvzip@0.5/hsa@64", "kvzip@0.2/hsa@64"]
    assert labels("kvzip@0.7", "kvzip", "full", "kvzip@0.30", ratios=(0.3,)) == ["kvzip@0.7", "kvzip@0.3", "full"]


def test_a_name_is_a_compression_and_a_policy() -> None:
    found = parse_methods(
        ["full", "exact-topk@64", "rocketkv@64", "kvzip-uniform@0.5", "default@0.3/lowbit@32", "duo@512"]
    )
    assert found == [
        Method("full"),
        Method("exact-topk@64", policy="exact-topk", budget=64),
        Method("rocketkv@64", "rocketkv", keep=64, policy="hsa", budget=64),
        Method("kvzip-uniform@0.5", "kvzip", 0.5, allocation="uniform"),
        Method("default@0.3/lowbit@32", "kvzip-rms", 0.3, policy="lowbit", budget=32),
        Method("duo@512", "duo", keep=512),
    ]
    assert found[2].recipe("Who?").budget == Budget(tokens=64)
    assert found[2].recipe("Who?").method.parameters()["query"] == "Who?"
    assert found[3].recipe("Who?").allocation.name == "uniform"
    assert [method.takes_question for method in found] == [False, False, True, False, False, False]


def test_every_name_is_a_method() -> None:
    wanted = {"full", "exact-topk", "duo", "snapkv", "pyramidkv", "h2o", "adakv", "quest", "sparq", "hsa", "default"}
    wanted |= {"rocketkv", "rocketkv-mt", "kvzip", "kvzip-uniform", "kvzip-head", "kvzip+"}
    assert wanted <= set(method_names())
    assert len(labels(*method_names())) == len(method_names()) - 1, "default is another name of kvzip-rms"


def test_a_share_keeps_all_its_digits() -> None:
    assert labels("kvzip", ratios=(1 / 3, 0.3333333, 1e-7, 1)) == [
        "kvzip@0.3333333333333333", "kvzip@0.3333333", "kvzip@1e-07", "kvzip@1"
    ]  # fmt: skip
    assert [m.ratio for m in parse_methods(["kvzip"], (0.1234561, 0.5, 0.1234564))] == [0.1234561, 0.5, 0.1234564]
    [method] = parse_methods(["kvzip@0.1234561/hsa@64"])
    assert parse_methods([method.label]) == [method]


def test_two_names_of_one_method_are_measured_once() -> None:
    assert labels("default@0.3", "kvzip-rms@0.3", "kvzip-rms@0.5") == ["default@0.3", "kvzip-rms@0.5"]
    assert same_methods(["default", "kvzip-rms", "kvzip-rms@0.5", "default"]) == {"kvzip-rms@0.3": "default@0.3"}
    assert labels("hsa@64", "full/hsa@64", "kvzip@0.3", "kvzip-uniform@0.3") == [
        "hsa@64", "kvzip@0.3", "kvzip-uniform@0.3"
    ]  # fmt: skip


@given(
    st.sampled_from(["kvzip", "snapkv", "default", "kvzip-uniform"]),
    st.one_of(st.integers(1, 99).map(lambda n: n / 100), st.integers(2, 5000)),
    st.one_of(st.none(), st.tuples(st.sampled_from(["hsa", "lowbit", "quest"]), st.integers(16, 4096))),
)
def test_a_label_says_all_of_a_method(name: str, number: float, policy: tuple[str, int] | None) -> None:
    spec = f"{name}@{number}" + (f"/{policy[0]}@{policy[1]}" if policy else "")
    [method] = parse_methods([spec])
    assert parse_methods([method.label]) == [method]
    assert (method.ratio, method.keep) == ((number, None) if number <= 1 else (None, number))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("kvzipp", ["kvzipp", "kvzip"]),
        ("rocket", ["rocketkv"]),
        ("kvzip@0.3/hsaa@64", ["policy", "hsa"]),
        ("quest@64/hsa@64", ["compression", "quest"]),
        ("kvzip@0", ["ratio"]),
        ("kvzip@x", ["not a number"]),
        ("quest@0.3", ["whole number"]),
        ("quest@3", ["16 or more"]),
        ("full@0.3", ["takes no number"]),
        ("kvzip@2.5", ["whole number"]),
        ("", ["no method"]),
        ("kvzip@1.5", ["neither a ratio above 0 and up to 1 nor a whole number"]),
        ("kvzip@-1", ["neither a ratio"]),
        ("kvzip@nan", ["neither a ratio"]),
        ("kvzip@inf", ["neither a ratio"]),
        ("kvzip@" + "9" * 5000, ["neither a ratio"]),
        ("quest@" + "9" * 5000, ["more pairs"]),
        ("kvzip@", ["no number after @"]),
        ("quest@ ", ["no number after @"]),
        ("kvzip@0.3/hsa@", ["no number after @"]),
        ("kvzip@/hsa@64", ["no number after @"]),
        ("full@", ["no number after @"]),
    ],
)
def test_what_makes_no_sense_is_refused(spec: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        parse_methods([spec])
    assert [word for word in words if word not in str(error.value)] == []
