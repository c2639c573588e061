"""What a run says of its machine, and what it takes floors from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kvz.bench import machine
from kvz.bench.environment import describe_environment, device_bandwidth
from kvz.bench.machine import best_rate, describe_machine, read_bandwidth
from kvz.models.language_model import LanguageModel


def test_a_rate_is_that_of_the_fastest_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy at first, and free for one read."""
    durations = [0.4, 0.4, 0.4, 0.4, 0.1, 0.4, 0.4, 0.4]
    clock = [0.0]
    taken: Iterator[float] = iter(durations)

    def read() -> None:
        clock[0] += next(taken)

    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])
    assert best_rate(read, 1000, 2.0) == pytest.approx(1000 / 0.1)
    assert clock[0] == pytest.approx(2.1)  # it went on for as long as it was told to
    taken = iter([0.5, 0.5, 0.25])
    assert best_rate(read, 1000, 0.0) == pytest.approx(4000)  # three reads at least


def test_bandwidth_is_one_of_memory() -> None:
    for found in (read_bandwidth(1 << 24, 0.0), device_bandwidth(torch.device("cpu"))):
        assert 1e8 < found < 1e13


def test_a_machine_is_described(tiny: LanguageModel) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert ", 1 thread; " in describe_machine()
        torch.set_num_threads(2)
        assert ", 2 threads; " in describe_machine()
    finally:
        torch.set_num_threads(threads)
    told = describe_environment(tiny, 12.5e9)
    assert (told["read_bandwidth_gb_s"], told["device"]) == (12.5, "cpu")
    assert told["weight_bytes"] == 4 * tiny.identity.facts.step_weights
