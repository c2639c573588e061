"""Lengths: what is fitted comes close, what is shortened keeps its ends, what is taken fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvz.bench.tasks.fit import fit, shortened, take
from kvz.bench.tasks.haystack import NOISE, Haystack, hide, read_haystack
from kvz.bench.tasks.words import generator
from kvz.errors import UsageError
from tests.bench.tasks.conftest import words


@given(st.integers(100, 5000), st.integers(0, 90), st.integers(1, 400), st.integers(0, 9))
def test_any_unit_is_fitted(tokens: int, bare: int, unit: int, seed: int):
    """Units of 1 to `unit` words, and `bare` words that are there in any case."""
    sizes = [generator(seed).randint(1, unit) for _ in range(tokens)]

    def make(count: int) -> str:
        return "x " * (bare + sum((sizes * (1 + count // len(sizes)))[:count]))

    calls: list[int] = []

    def counter(text: str) -> int:
        calls.append(words(text))
        return calls[-1]

    assert abs(words(fit(make, counter, tokens)) - tokens) <= max(1, tokens // 100)
    assert len(calls) <= 45


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(UsageError, match="needs 51 at least"):
        fit(lambda n: "x " * (51 + n), words, 50)
    with pytest.raises(UsageError, match="there is text for 80 tokens only, not for 100"):
        fit(lambda n: "x " * n, words, 100, most=80)
    assert words(fit(lambda n: "x " * n, words, 100, most=100)) == 100


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 300))
def test_what_is_taken_fits_and_the_next_would_not(sizes: list[int], tokens: int):
    pieces = ["x " * size for size in sizes]
    count = take(pieces, words, tokens)
    assert sum(sizes[:count]) <= tokens
    assert count == len(sizes) or sum(sizes[: count + 1]) > tokens


@given(st.integers(50, 3000), st.integers(30, 2000))
def test_what_is_shortened_keeps_its_ends(length: int, tokens: int):
    text = " ".join(f"{number:05}" for number in range(length))
    cut = shortened(text, words, tokens)
    if length <= tokens:
        assert cut == text
        return
    assert 0.95 * tokens - 3 <= words(cut) <= tokens
    kept = cut.split()
    front = sum(1 for number, word in enumerate(kept) if word == f"{number:05}")
    back = sum(1 for number, word in enumerate(reversed(kept)) if word == f"{length - 1 - number:05}")
    assert len(kept) - 1 <= front + back <= len(kept) + 1
    assert abs(front - back) <= 2


def test_a_haystack_goes_round_and_keeps_its_paragraphs():
    text = "".join(NOISE.sentences(generator(0))(60))
    assert len(text.split()) == 60
    assert text.count("The rain has stopped.") == 3
    assert "go home.\n\nThe rain" in text


def test_more_of_a_haystack_only_adds_to_its_end():
    haystack = read_haystack(None)
    first = haystack.sentences(generator(5))
    long = "".join(first(9000))
    assert all(long.startswith("".join(first(count)).strip()) for count in (1, 37, 400, 7200))
    assert long != "".join(haystack.sentences(generator(6))(9000))


def test_needles_are_hidden_at_the_nearest_edge():
    sentences = ["aaaa. ", "bb. ", "cccccccc. "]  # edges at 0, 6, 10, 20 of 20
    assert hide(sentences, ["N."], [0.0]) == "N. aaaa. bb. cccccccc."
    assert hide(sentences, ["N."], [0.34]) == "aaaa. N. bb. cccccccc."
    assert hide(sentences, ["N."], [0.6]) == "aaaa. bb. N. cccccccc."
    assert hide(sentences, ["2.", "1.", "3."], [0.5, 0.1, 1.0]) == "1. aaaa. bb. 2. cccccccc. 3."
    assert hide(["港口。", "潮水。"], ["N."], [0.5]) == "港口。 N. 潮水。"


def test_texts_of_a_folder_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("One sentence. Two!\n\n\nNext\nparagraph? Yes 3. 4 more.")
    (tmp_path / "b.md").write_text("Not this.")
    haystack = read_haystack(tmp_path)
    assert haystack == Haystack(
        f"the texts in {tmp_path.name}",
        (("One sentence. ", "Two!\n\n"), ("Next\nparagraph? ", "Yes 3. 4 more.\n\n")),
    )


def test_a_folder_without_texts_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"no text in .* name a folder of \.txt files with --texts"):
        read_haystack(tmp_path)
    monkeypatch.setattr("kvz.bench.documents.EXAMPLES", tmp_path / "not there")
    with pytest.raises(UsageError, match="--texts"):
        read_haystack(None)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"a\.txt is not UTF-8 at byte 0"):
        read_haystack(tmp_path)
