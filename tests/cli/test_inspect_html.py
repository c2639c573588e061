"""kvz inspect --html: one page, true to the archive, harmless whatever the document says."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

import kvz
from kvz.archive import Archive
from tests.cli.conftest import Run
from tests.conftest import TEXT
from tests.format.archives import Forgery
from tests.report.pages import Page, assert_nothing_fetched
from tests.tiny import GEMMA_WINDOW, make_model_folder

HOSTILE = (
    "Tags: <script>alert(1)</script> </span></div> &amp; \"quotes\" 'and' <!-- more -->\n\n"
    "\ttab, naïve 数据 🙂, control \x07 and \x1b[2J, turned \u202egnp.exe\n   spaces   \nlast line"
)


def page_of(run: Run, archive: Path, *options: object) -> Page:
    outcome = run("inspect", archive, "--html", "-", *options).succeeded()
    return Page(outcome.text)


def kept_by(archive: Archive) -> Counter[int]:
    """Heads that kept each context token, pair by pair."""
    prefix = archive.manifest.prompt.prefix_tokens
    return Counter(
        position - prefix
        for layer in archive.cache.layers
        if layer.window is None
        for position in layer.positions.tolist()
        if position >= prefix
    )


def test_tokens_heads_and_text_are_those_of_the_archive(run: Run, archive: Path) -> None:
    page = page_of(run, archive)
    loaded = kvz.load(archive)
    assert "".join(text for *_, text in page.runs) == TEXT
    shown = {first + i: heads for first, count, heads, _ in page.runs for i in range(count)}
    assert sorted(shown) == list(range(len(TEXT)))
    kept = kept_by(loaded)
    assert shown == {token: kept[token] for token in range(len(TEXT))}
    assert sum(shown.values()) == loaded.manifest.compression.pairs_kept


def test_the_page_needs_nothing_else(run: Run, archive: Path) -> None:
    page = page_of(run, archive)
    assert_nothing_fetched(page.source)
    assert page.source.startswith("<!DOCTYPE html>")
    assert "prefers-color-scheme: dark" in page.source


def test_the_heat_map_is_a_table_of_shares(run: Run, archive: Path) -> None:
    page = page_of(run, archive)
    info, length = kvz.load(archive).manifest.compression, len(TEXT)
    wanted = [
        f"layer {layer}, head {head}: {kept} of {length} pairs ({100 * kept / length:.1f} %)"
        for layer, row in enumerate(info.kept)
        for head, kept in enumerate(row)
    ]
    assert [cell.attributes["title"] for cell in page.all("td") if "head " in (cell.attributes.get("title") or "")] == (
        wanted
    )
    means = [f"{100 * sum(row) / len(row) / length:.1f}" for row in info.kept]
    assert [cell.text for cell in page.all("td") if "mean" in (cell.attributes.get("title") or "")] == means


def test_the_distribution_counts_every_token(run: Run, archive: Path) -> None:
    page = page_of(run, archive)
    kept = Counter(kept_by(kvz.load(archive))[token] for token in range(len(TEXT)))
    (table,) = re.findall(r"<details>.*?</details>", page.source, re.DOTALL)
    rows = re.findall(r'<th scope="row">(\d+)</th><td>(\d+)</td>', table)
    assert {int(heads): int(tokens) for heads, tokens in rows} == {heads: kept[heads] for heads in range(7)}


def test_a_hostile_document_stays_text(run: Run, compress: Run, tmp_path: Path, out: Path) -> None:
    (tmp_path / "a<b>&.txt").write_text(HOSTILE)
    compress(tmp_path / "a<b>&.txt").succeeded()
    page = page_of(run, out / "a.kvz")
    text = "".join(text for *_, text in page.runs)
    assert text == HOSTILE.replace("\x07", "␇").replace("\x1b", "␛").replace("\u202e", "\ufffd")
    assert len(page.all("script")) == 1
    assert "alert(1)" not in page.all("script")[0].text
    assert page.all("h1")[0].text == "a<b>&.txt"


def test_a_sliding_layer_is_marked_and_not_counted(run: Run, compress: Run, tmp_path: Path, out: Path) -> None:
    (tmp_path / "doc.txt").write_text(TEXT)
    folder = make_model_folder(tmp_path / "gemma", "gemma3")
    compress(tmp_path / "doc.txt", model=folder).succeeded()
    page = page_of(run, out / "a.kvz")
    loaded = kvz.load(out / "a.kvz")
    sliding = page.all("td", css="sliding")
    assert [cell.text for cell in sliding] == [f"sliding: last {GEMMA_WINDOW - 1} tokens"] * 2
    assert sum(heads * count for _, count, heads, _ in page.runs) == loaded.manifest.compression.pairs_kept
    assert max(heads for _, _, heads, _ in page.runs) <= 2


def test_without_ids_the_page_says_so(run: Run, compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "--omit-text").succeeded()
    page = page_of(run, out / "a.kvz")
    assert "--omit-text" in " ".join(p.text for p in page.all("p"))
    assert "".join(text for *_, text in page.runs) == "·" * len(TEXT)
    assert "ferry" not in page.source


def test_without_the_model_tokens_are_dots_and_the_page_says_why(
    run: Run, compress: Run, tiny_folder: Path, other_tokenizer: Path, text_file: Path, tmp_path: Path, out: Path
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(tiny_folder, folder)
    compress(text_file, model=folder).succeeded()
    shutil.rmtree(folder)
    outcome = run("inspect", out / "a.kvz", "--html", out / "a.html").succeeded()
    assert outcome.err.endswith("without the text\n")
    page = Page((out / "a.html").read_text())
    assert f"the model {folder} is not on this machine" in " ".join(p.text for p in page.all("p"))
    assert sum(count for _, count, _, _ in page.runs) == len(TEXT)
    assert {text for *_, text in page.runs} <= {"·" * n for n in range(1, len(TEXT))}
    page = page_of(run, out / "a.kvz", "-m", tiny_folder)
    assert "".join(text for *_, text in page.runs) == TEXT
    run("inspect", out / "a.kvz", "--html", "-", "-m", other_tokenizer).failed("tokenizer", "-m")
    run("inspect", out / "a.kvz", "--html", "-", "-m", folder).failed(str(folder))


def test_another_tokenizer_in_the_model_s_place(
    run: Run, compress: Run, tiny_folder: Path, other_tokenizer: Path, text_file: Path, tmp_path: Path, out: Path
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(tiny_folder, folder)
    compress(text_file, model=folder).succeeded()
    shutil.copy(other_tokenizer / "tokenizer.json", folder / "tokenizer.json")
    page = page_of(run, out / "a.kvz")
    assert "The text is left out: the tokenizer" in " ".join(p.text for p in page.all("p"))


def test_ids_that_the_model_does_not_have(run: Run, archive: Path, tmp_path: Path) -> None:
    forged = Forgery.of(archive)
    begin, end = forged.table["token_ids"]["data_offsets"]
    forged.put("token_ids", b"\xff\xff\xff\x7f" * ((end - begin) // 4))
    (tmp_path / "a.kvz").write_bytes(forged.sealed())
    page = page_of(run, tmp_path / "a.kvz")
    assert "token ids that" in " ".join(p.text for p in page.all("p"))


def test_files_are_not_replaced_without_being_asked(run: Run, archive: Path, out: Path) -> None:
    target = out / "page.html"
    target.write_text("mine")
    run("inspect", archive, "--html", target).failed(f"{target} exists; give --force to replace it\n")
    run("inspect", archive, "--html", "/dev/null").failed(
        "/dev/null is not a regular file", "for a pipe give --html -\n"
    )
    assert target.read_text() == "mine"
    outcome = run("inspect", archive, "--html", target, "-f").succeeded()
    assert outcome.out == b""
    assert Page(target.read_text()).runs
    copy = out / "a.kvz"
    shutil.copy(archive, copy)
    run("inspect", copy, "--html", copy, "-f").failed("the archive itself", status=2)
    assert copy.read_bytes() == archive.read_bytes()
    assert sorted(path.name for path in out.iterdir()) == ["a.kvz", "page.html"]


def test_options_that_do_not_go_together(run: Run, archive: Path, out: Path) -> None:
    run("inspect", archive, "--html", out / "a.html", "--json").failed("--json", status=2)
    run("inspect", archive, "-f").failed("--html", status=2)
    run("inspect", archive, "-m", "x").failed("--html", status=2)
    run("inspect", archive, "--html", " ").failed("--html is empty", status=2)
    run("inspect", archive, "--html", out / "no" / "a.html").failed("does not exist")
    assert list(out.iterdir()) == []


def test_damage_is_noticed(run: Run, archive: Path, tmp_path: Path) -> None:
    forged = Forgery.of(archive)
    data = bytearray(forged.sealed())
    data[-1] ^= 1
    data[len(data) - len(forged.data)] ^= 1
    (tmp_path / "a.kvz").write_bytes(data)
    run("inspect", tmp_path / "a.kvz", "--html", tmp_path / "a.html").failed("damaged")
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_long_document_is_cut_into_blocks_between_tokens(
    run: Run, compress: Run, tmp_path: Path, out: Path, newline: str
) -> None:
    text = newline.join(["one line", "", "  another & longer one"] * 40) + "x" * 1500
    (tmp_path / "doc.txt").write_bytes(text.encode())
    compress(tmp_path / "doc.txt", "--method", "recent", "--keep-newlines").succeeded()
    page = page_of(run, out / "a.kvz")
    assert "".join(text for *_, text in page.runs) == text.replace("\r", "␍")
    blocks = re.findall(r"<div>(<span.*?)</div>", page.source, re.DOTALL)
    assert len(blocks) > 3
    assert [block.endswith("<u></u>\n</span>") for block in blocks[:-2]] == [True] * (len(blocks) - 2)
    sizes = [sum(map(int, re.findall(r'data-n="(\d+)"', block))) for block in blocks]
    assert sum(sizes) == len(text)
    assert max(sizes) <= 1200


def test_a_page_in_the_place_of_a_link_to_nothing(run: Run, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "a.html").symlink_to(tmp_path / "nowhere")
    run("inspect", archive, "--html", tmp_path / "a.html").failed("a.html exists; give --force to replace it")
    run("inspect", archive, "--html", tmp_path / "a.html", "--force").succeeded()
    assert not (tmp_path / "a.html").is_symlink()


def test_a_number_of_tokens_that_nothing_confirms_takes_no_memory(run: Run, archive: Path, tmp_path: Path) -> None:
    forged, tokens = Forgery.of(archive), 2_000_000_000
    forged.drop("token_ids")
    forged.manifest["source"]["text_included"] = False
    forged.manifest["model"]["max_positions"] = 2**31
    forged.manifest["prompt"]["context_tokens"] = tokens
    forged.manifest["compression"]["pairs_total"] = 6 * tokens
    (tmp_path / "a.kvz").write_bytes(forged.sealed())
    run("inspect", tmp_path / "a.kvz", "--html", tmp_path / "a.html").failed("2,000,000,000", status=2)
    assert "2,000,000,000 context" in run("inspect", tmp_path / "a.kvz").succeeded().text
    run("verify", tmp_path / "a.kvz").succeeded()
