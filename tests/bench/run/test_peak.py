"""Memory that methods take: buffers of a known size show, in whichever order methods are measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kvz.bench.cell_run import measure, measure_expanded
from kvz.bench.methods import parse_methods
from kvz.bench.metrics import ANY_FOUND
from kvz.bench.peak import can_watch, most_of, watched
from kvz.bench.plan import Planned
from kvz.bench.prefilled import Prefilled
from kvz.bench.tasks.task import Question, Sample
from kvz.decode.policies.quest import Quest
from kvz.models.language_model import LanguageModel
from kvz.scoring.snapkv import SnapKV
from tests.conftest import TEXT

CPU = torch.device("cpu")
MB = 1_000_000
SLACK = 18 * MB
SAMPLE = Sample(TEXT * 4, (Question("Where is the key?", ("clock",)), Question("Who keeps it?", ("Mara",))), {})

pytestmark = pytest.mark.skipif(not can_watch(CPU), reason="memory cannot be watched here")


def hold(megabytes: int, parts: int = 1) -> None:
    """Allocate and touch memory for longer than a look at it takes to come around, and free it.

    In one part the system has it back at once; of many small ones the allocator keeps what is freed.
    """
    held = [torch.ones(megabytes * MB // 4 // parts) for _ in range(parts)]
    time.sleep(0.05)
    del held


def peaks(model: LanguageModel, specs: Sequence[str]) -> dict[str, int]:
    """The peak of each method, measured one after another over one context."""
    prefilled = Prefilled(model, SAMPLE, 3)
    found = {}
    for spec in specs:
        [method] = parse_methods([spec])
        found[spec] = measure(prefilled, Planned("own", 800, "multi-query", method, 1), ANY_FOUND, False)["peak_bytes"]
    return found


def test_a_rise_is_what_was_held_at_most_and_no_more() -> None:
    rises = []
    for megabytes in (90, 30, 60, 0):
        with watched(CPU) as rise:
            hold(megabytes, 90)
            rises.append(rise())
    for megabytes, found in zip((90, 30, 60, 0), rises, strict=True):
        assert found == pytest.approx(megabytes * MB, abs=5 * MB)


def test_the_largest_rise_is_known_if_all_are() -> None:
    assert most_of([3, 9, 4]) == 9
    assert most_of([3, None]) is None


@pytest.mark.parametrize("backwards", [False, True])
def test_what_a_method_takes_is_its_own_at_every_ratio_and_in_every_order(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    wanted = {"full": 0, "snapkv@0.5": 80, "snapkv@0.3": 80, "h2o@0.5": 0, "quest@64": 40, "snapkv@0.2": 80}
    peaks(tiny, list(wanted))  # first calls, which keep what they import and compile
    score, prepare = SnapKV.score, Quest.prepare_layer

    def scoring(*arguments: Any) -> Any:
        hold(80)
        return score(*arguments)

    def preparing(*arguments: Any) -> None:
        hold(40)
        prepare(*arguments)

    monkeypatch.setattr(SnapKV, "score", scoring)
    monkeypatch.setattr(Quest, "prepare_layer", preparing)
    found = peaks(tiny, list(wanted)[::-1] if backwards else list(wanted))
    for spec, megabytes in wanted.items():
        assert found[spec] == pytest.approx(megabytes * MB, abs=SLACK), spec


def test_the_full_cache_is_what_full_takes(tiny: LanguageModel) -> None:
    long = Sample(TEXT * 16, SAMPLE.questions, {})
    prefilled = Prefilled(tiny, long, 3)
    [full, few] = parse_methods(["full", "snapkv@0.1"])
    cells = [Planned("own", 3000, "multi-query", method, 1) for method in (full, few)]
    measured = [measure(prefilled, cell, ANY_FOUND, False) for cell in cells]
    assert measured[0]["peak_bytes"] >= prefilled.whole[0].nbytes
    assert measure_expanded(prefilled, measured[0])["peak_bytes"] >= prefilled.whole[0].nbytes
