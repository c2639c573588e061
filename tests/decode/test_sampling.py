from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvz.compression import compress
from kvz.config import Sampling
from kvz.decode.sampling import NOT_A_NUMBER, Sampler, choose_rows, uniform
from kvz.errors import DecodeError, UsageError
from tests.conftest import TEXT

INF = float("inf")
LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.9, -5.0, 2.0])


def frequencies(sampling: Sampling, draws: int = 4000) -> torch.Tensor:
    sampler = Sampler(sampling)
    counts = torch.zeros(len(LOGITS))
    for number in range(draws):
        counts[sampler.choose(LOGITS, number)] += 1
    return counts / draws


def rows(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The first tokens of answers of one seed."""
    seeds, numbers = (torch.full((len(logits),), value) for value in (sampling.seed or 0, 0))
    return choose_rows(logits, sampling, seeds, numbers)


def test_draws_are_decided_by_seed_and_number() -> None:
    """SplitMix64 in Python's whole numbers, twice: of the seed, and of that plus the number."""

    def mixed(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    seeds, numbers = [0, 1, 7, 2**63 - 1, 12345], [0, 1, 2, 500, 2**20]
    want = [(mixed((mixed(seed) + number) % 2**64) >> 11) / 2**53 for seed, number in zip(seeds, numbers, strict=True)]
    assert mixed(0) == 0xE220A8397B1DCDAF  # the first output of the published generator from seed 0
    assert uniform(torch.tensor(seeds), torch.tensor(numbers)).tolist() == want
    draws = uniform(torch.full((20000,), 5), torch.arange(20000))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(float(draws.mean()) - 0.5) < 0.01


def test_rows_draw_for_themselves() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -40.0]).expand(20000, -1)
    numbers = torch.arange(20000)

    def drawn(sampling: Sampling, seed: int) -> torch.Tensor:
        return choose_rows(logits, sampling, torch.full((20000,), seed), numbers)

    one = drawn(Sampling(1.0), 3)
    torch.testing.assert_close(
        torch.bincount(one, minlength=5) / 20000, torch.softmax(logits[0], -1), atol=0.012, rtol=0
    )
    assert set(drawn(Sampling(1.0, top_k=2), 3).tolist()) == {0, 1}
    assert set(drawn(Sampling(1.0, top_p=0.5), 3).tolist()) == {0}
    assert torch.equal(drawn(Sampling(1.0), 3), one)
    assert not torch.equal(drawn(Sampling(1.0), 4), one)
    alone = Sampler(Sampling(1.0, seed=3))
    assert [alone.choose(logits[0], number) for number in range(50)] == one[:50].tolist()


def test_greedy_takes_the_largest():
    assert Sampler(Sampling()).choose(LOGITS, 0) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_frequencies_follow_the_softmax(temperature):
    got = frequencies(Sampling(temperature, seed=1))
    want = torch.softmax(LOGITS.double() / temperature, 0)
    assert (got - want).abs().max() < 0.03


def test_top_k_and_top_p_cut_the_tail():
    want = torch.softmax(LOGITS.masked_fill(LOGITS < 2.5, float("-inf")), 0)
    assert (frequencies(Sampling(1.0, top_k=2, seed=2)) - want).abs().max() < 0.03
    first_two = float(torch.softmax(LOGITS, 0)[[1, 3]].sum())
    assert (frequencies(Sampling(1.0, top_p=first_two - 0.01, seed=3)) - want).abs().max() < 0.03
    assert frequencies(Sampling(1.0, top_p=1e-6, seed=4))[1] == 1
    assert frequencies(Sampling(1.0, top_k=1, seed=4))[1] == 1


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 1), st.integers(0, 2**31))
def test_top_p_keeps_the_smallest_set_that_reaches_p(p, seed):
    logits = torch.randn(30, generator=torch.Generator().manual_seed(seed)) * 3
    probabilities = torch.softmax(logits, 0)
    order = probabilities.sort(descending=True).indices
    before = probabilities[order].cumsum(0) - probabilities[order]  # what the tokens before each one reach
    least, most = (set(order[before < p + slack].tolist()) for slack in (-1e-5, 1e-5))
    draws = torch.arange(3000)
    drawn = choose_rows(logits.expand(3000, -1), Sampling(1.0, top_p=p), torch.full((3000,), seed), draws)
    assert set(drawn.tolist()) <= most
    assert {token for token in least if probabilities[token] > 0.01} <= set(drawn.tolist())  # missed once in 10^13 runs


def test_a_tiny_temperature_is_greedy_and_nan_is_refused():
    assert Sampler(Sampling(1e-40, seed=1)).choose(LOGITS, 0) == 1
    for sampling in (Sampling(), Sampling(1.0, seed=1)):
        with pytest.raises(DecodeError, match="float32"):
            Sampler(sampling).choose(torch.tensor([1.0, float("nan"), 3.0]), 0)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=1), Sampling(1.0, top_k=2, top_p=0.9, seed=1)])
@pytest.mark.parametrize("row", [[0, INF, 0], [INF, INF, 0], [-INF, -INF, -INF], [0, float("nan"), INF]])
def test_logits_that_are_not_finite_are_refused_and_masked_ones_are_not(sampling: Sampling, row: list[float]) -> None:
    with pytest.raises(DecodeError, match=r"not finite.*--dtype"):
        Sampler(sampling).choose(torch.tensor(row), 0)
    masked = torch.tensor([-INF, 0.0, -INF])
    assert Sampler(sampling).choose(masked, 0) == 1
    chosen = rows(torch.stack([torch.tensor(row), masked]), sampling)
    assert chosen.tolist() == [NOT_A_NUMBER, 1]


def test_any_heat_leaves_masked_tokens_out() -> None:
    masked = torch.tensor([-INF, 0.0, 5.0])
    hot = Sampling(1e300, seed=1)
    assert {Sampler(hot).choose(masked, 0) for _ in range(5)} <= {1, 2}
    assert set(rows(masked.expand(9, -1), hot).tolist()) <= {1, 2}


def test_a_seed_repeats_an_answer_whatever_was_asked_before(tiny):
    archive = compress(TEXT, tiny, ratio=0.5)
    warm = Sampling(1.5, seed=7)
    first = archive.ask("Who?", 15, warm).ids
    archive.ask("When?", 9, Sampling(1.5))
    assert archive.ask("Who?", 15, warm).ids == first
    assert archive.ask("Who?", 15, Sampling(1.5, seed=8)).ids != first


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0.5},
        {"top_k": 3},
        {"seed": 3},
        {"temperature": 1, "top_p": 0},
        {"temperature": 1, "top_p": 1.1},
        {"temperature": 1, "top_k": 0},
        {"temperature": 1, "seed": -1},
        {"temperature": "0.5"},
        {"temperature": None},
        {"temperature": True},
        {"temperature": 1j},
        {"temperature": INF},
        {"temperature": 1, "top_p": "1"},
        {"temperature": 1, "top_p": True},
        {"temperature": 1, "top_p": float("nan")},
        {"temperature": 1, "top_k": 2.0},
        {"temperature": 1, "top_k": True},
        {"temperature": 1, "seed": "7"},
        {"temperature": -(10**400)},
    ],
)
def test_settings_that_cannot_be(options):
    name = next(reversed(options))
    with pytest.raises(UsageError, match=name.replace("_", "-")):
        Sampling(**options)


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, Fraction])
def test_numbers_of_any_kind_are_numbers(kind):
    sampling = Sampling(kind(0.5), top_p=kind(0.5))
    assert Sampler(sampling).choose(LOGITS, 0) in (1, 3)
    assert rows(LOGITS[None], sampling)[0] in (1, 3)
    assert Sampler(Sampling(10**400, seed=1)).choose(LOGITS, 0) in range(len(LOGITS))
