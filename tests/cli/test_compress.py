"""kvz compress: what it writes, where, and what it says about it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

import kvz
from kvz.documents import line_feeds
from kvz.models.language_model import LanguageModel
from tests.cli.conftest import Run
from tests.cli.harness import finish, spawn
from tests.conftest import TEXT


def text_of(path: Path, model: LanguageModel) -> str:
    """The document as the archive's ids tell it, without the prefix."""
    archive = kvz.load(path)
    assert archive.token_ids is not None
    return model.tokenizer.decode(archive.token_ids[archive.manifest.prompt.prefix_tokens :].tolist())


def test_an_archive_is_written_and_described_on_stderr_alone(compress: Run, text_file: Path, out: Path) -> None:
    outcome = compress(text_file).succeeded()
    archive = kvz.load(out / "a.kvz")
    assert outcome.out == b""
    assert str(out / "a.kvz") in outcome.err
    assert f"{archive.manifest.compression.pairs_kept} of" in outcome.err
    assert os.listdir(out) == ["a.kvz"]


def test_quiet_says_nothing(compress: Run, text_file: Path) -> None:
    outcome = compress(text_file, "-q").succeeded()
    assert (outcome.out, outcome.err) == (b"", "")


def test_json_describes_the_archive(compress: Run, text_file: Path, out: Path) -> None:
    (summary,) = compress(text_file, "-q", "--json", "-r", 0.5).succeeded().objects
    archive = kvz.load(out / "a.kvz")
    assert summary["archive"] == str(out / "a.kvz")
    assert summary["document"] == "doc.txt"
    assert summary["context_tokens"] == len(TEXT.encode())
    assert summary["pairs_total"] == 6 * len(TEXT.encode())
    assert summary["pairs_kept"] == summary["pairs_total"] // 2
    assert summary["kv_bytes_kept"] == archive.cache.nbytes
    assert summary["kv_bytes_full"] == 6 * archive.manifest.logical_length * 16 * 2 * 4
    assert summary["file_bytes"] == (out / "a.kvz").stat().st_size
    assert list(summary["seconds"]) == ["load", "prefill", "score", "evict", "write"]


def test_the_output_is_named_after_the_document(run: Run, text_file: Path, tiny_folder: Path) -> None:
    run("compress", text_file, "-m", tiny_folder, "-q").succeeded()
    assert sorted(os.listdir(text_file.parent)) == ["doc.kvz", "doc.txt"]
    assert text_file.read_text() == TEXT


def test_force_replaces_an_archive(compress: Run, text_file: Path, out: Path) -> None:
    (out / "a.kvz").write_bytes(b"old")
    compress(text_file, "--force").succeeded()
    assert kvz.load(out / "a.kvz").manifest.source.name == "doc.txt"
    assert os.listdir(out) == ["a.kvz"]


def test_the_same_document_gives_the_same_bytes(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file).succeeded()
    compress(text_file, "-o", out / "b.kvz").succeeded()
    assert (out / "a.kvz").read_bytes() == (out / "b.kvz").read_bytes()


def test_standard_input_gives_the_same_archive_but_for_its_name(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file).succeeded()
    compress("-", "-o", out / "b.kvz", stdin=TEXT.encode()).succeeded()
    ours, theirs = kvz.load(out / "a.kvz"), kvz.load(out / "b.kvz")
    assert (ours.manifest.source.name, theirs.manifest.source.name) == ("doc.txt", "-")
    assert ours.manifest.source.sha256 == theirs.manifest.source.sha256
    assert ours.manifest.checksums == theirs.manifest.checksums


def test_a_document_from_a_pipe_that_has_a_path(compress: Run, out: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, TEXT.encode())
    os.close(writer)
    compress(f"/dev/fd/{reader}").succeeded()
    os.close(reader)
    assert kvz.load(out / "a.kvz").manifest.prompt.context_tokens == len(TEXT.encode())


def test_a_byte_order_mark_is_dropped(compress: Run, tmp_path: Path, out: Path, tiny: LanguageModel) -> None:
    path = tmp_path / "doc.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    compress(path).succeeded()
    assert text_of(out / "a.kvz", tiny) == TEXT


@pytest.mark.parametrize("text", ["Zeile\r\nZeile\n\n", "  leading space", "<|im_end|> is text", "数据 🙂 naïve\n"])
def test_the_text_can_be_read_back_as_it_was(
    compress: Run, tmp_path: Path, out: Path, tiny: LanguageModel, text: str
) -> None:
    path = tmp_path / "doc.txt"
    path.write_bytes(text.encode())
    compress(path, "-r", 1, "--keep-newlines").succeeded()
    assert text_of(out / "a.kvz", tiny) == text
    assert kvz.load(out / "a.kvz").manifest.source.newlines_replaced == 0


def test_line_ends_are_read_as_line_feeds(
    compress: Run, run: Run, tmp_path: Path, out: Path, tiny: LanguageModel
) -> None:
    path, data = tmp_path / "doc.txt", b"The ledger\r\nis blue.\rIt is\nold.\r\n"
    path.write_bytes(data)
    outcome = compress(path, "-r", 1, "--protect-text", "ledger\r\nis", "--json").succeeded()
    assert text_of(out / "a.kvz", tiny) == "The ledger\nis blue.\nIt is\nold.\n"
    assert "3 line ends CR LF or CR read as LF; --keep-newlines" in outcome.err
    assert outcome.objects[0]["newlines_replaced"] == 3
    source = kvz.load(out / "a.kvz").manifest.source
    assert (source.newlines_replaced, source.bytes) == (3, len(data))
    assert source.sha256 == hashlib.sha256(data).hexdigest()
    assert "3 line ends read as LF" in run("inspect", out / "a.kvz").text
    assert "line ends" not in compress(path, "-q", "-o", out / "b.kvz").succeeded().err


def test_the_api_reads_line_ends_as_the_command_line_does(tiny: LanguageModel, tmp_path: Path) -> None:
    text = "The ledger\r\nis blue.\rIt is old.\n"
    path = tmp_path / "doc.txt"
    path.write_bytes(text.encode())
    for document in (text, path):
        for keep, read in ((False, line_feeds(text)), (True, text)):
            ids = kvz.compress(document, tiny, ratio=1.0, keep_newlines=keep).token_ids
            assert ids is not None
            assert read in tiny.tokenizer.decode(ids.tolist())


def test_omit_text_leaves_the_ids_out(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "--omit-text").succeeded()
    archive = kvz.load(out / "a.kvz")
    assert archive.token_ids is None
    assert not archive.manifest.source.text_included


@pytest.mark.parametrize(
    ("part", "kept"),
    [("head", ("-", "z")), ("middle", ("a", "z")), ("tail", ("a", "-"))],
    ids=["head", "middle", "tail"],
)
def test_truncate_leaves_a_part_out(
    compress: Run, run: Run, tmp_path: Path, out: Path, short_folder: Path, tiny: LanguageModel, part: str, kept: str
) -> None:
    path = tmp_path / "doc.txt"
    path.write_text("a" * 100 + "-" * 400 + "z" * 100)
    outcome = compress(path, "--truncate", part, model=short_folder).succeeded()
    text, archive = text_of(out / "a.kvz", tiny), kvz.load(out / "a.kvz")
    dropped = 600 - len(text)
    assert (text[0], text[-1]) == kept
    assert archive.manifest.source.dropped_tokens == dropped
    assert f"{dropped} tokens of the document's {part} were left out" in outcome.err
    assert archive.cache.logical_length < 256 - 16
    assert f"{part} cut by {dropped}" in run("inspect", out / "a.kvz").text


def test_truncate_changes_nothing_where_all_fits(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "--truncate", "head").succeeded()
    source = kvz.load(out / "a.kvz").manifest.source
    assert (source.truncated, source.dropped_tokens) == (None, 0)


def test_a_truncated_document_can_be_asked(
    compress: Run, run: Run, tmp_path: Path, out: Path, short_folder: Path
) -> None:
    path = tmp_path / "doc.txt"
    path.write_text("The key is blue. " * 40)
    compress(path, "--truncate", "tail", model=short_folder).succeeded()
    assert run("ask", out / "a.kvz", "What?", "--max-new-tokens", 2).succeeded().text.endswith("\n")


@pytest.mark.parametrize("allocation", ["uniform", "nonuniform"])
def test_a_budget_is_kept_on_average(compress: Run, text_file: Path, out: Path, allocation: str) -> None:
    compress(text_file, "--budget", 20, "--allocation", allocation).succeeded()
    info = kvz.load(out / "a.kvz").manifest.compression
    assert info.pairs_kept == 20 * 6
    assert (len({k for row in info.kept for k in row}) == 1) == (allocation == "uniform")


def test_three_documents_in_a_row(compress: Run, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "doc.txt"
    for number, text in enumerate([TEXT, "Another one, about ferries and keys. " * 3, TEXT]):
        path.write_text(text)
        compress(path, "-o", out / f"{number}.kvz").succeeded()
    first, second, third = ((out / f"{n}.kvz").read_bytes() for n in range(3))
    assert first == third != second


def test_a_document_whose_name_is_not_utf_8(compress: Run, tmp_path: Path, out: Path) -> None:
    path = tmp_path / os.fsdecode(b"bad\xff.txt")
    try:
        path.write_text(TEXT)
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    (summary,) = compress(path, "--json").succeeded().objects
    assert summary["document"].startswith("bad")
    assert kvz.load(out / "a.kvz").manifest.source.name == summary["document"]


def test_an_archive_piped_is_the_one_that_would_be_written(
    compress: Run, text_file: Path, out: Path, tiny_folder: Path
) -> None:
    compress(text_file).succeeded()
    command = ["compress", str(text_file), "-m", str(tiny_folder), "--dtype", "float32", "-o", "-"]
    outcome = finish(spawn(*command)).succeeded()
    assert outcome.out == (out / "a.kvz").read_bytes()
    assert "pairs kept" in outcome.err


def test_piping_leaves_no_temporary_file_and_minds_none(
    compress: Run, text_file: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    (folder / "kvz-check").touch()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    piped = compress(text_file, "-o", "-").succeeded().out
    compress(text_file).succeeded()
    assert piped == (out / "a.kvz").read_bytes()
    assert os.listdir(folder) == ["kvz-check"]


def test_the_dtype_is_that_of_the_archive(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "--dtype", "bfloat16").succeeded()
    assert {layer.keys.dtype for layer in kvz.load(out / "a.kvz").cache.layers} == {torch.bfloat16}


@pytest.mark.parametrize("length", range(1, 8))
@pytest.mark.parametrize("method", ["kvzip-rms", "snapkv", "recent"])
def test_a_default_budget_never_refuses(compress: Run, tmp_path: Path, length: int, method: str) -> None:
    path = tmp_path / "short.txt"
    path.write_text("abcdefg"[:length])
    outcome = compress(path, "--method", method, "--json").succeeded()
    (summary,) = outcome.objects
    assert summary["context_tokens"] == length  # a token a byte
    assert summary["pairs_kept"] >= summary["pairs_total"] / length
    said = "in place of the default ratio 0.3" in outcome.err
    assert said == (length in (2, 3) and method == "kvzip-rms")


def test_a_default_budget_gives_way_to_what_is_to_be_kept(compress: Run, text_file: Path, run: Run, out: Path) -> None:
    outcome = compress(text_file, "--keep-recent", 100).succeeded()
    assert "every head keeps at least 100 of the document's" in outcome.err
    (shown,) = run("inspect", out / "a.kvz", "--json").succeeded().objects
    info = shown["manifest"]["compression"]
    assert info["ratio"] > 0.3
    assert {count for layer in info["kept"] for count in layer} == {100}
    compress(text_file, "--keep-recent", 100, "-r", 0.3, "-f").failed(
        "ratio 0.3 is too small", "the least is", status=2
    )
