"""kvz inspect and kvz verify: what is inside an archive, and whether it is whole."""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import shutil
from pathlib import Path

import msgspec
import pytest

import kvz
from kvz.format.reader import open_archive
from tests.cli.conftest import Run
from tests.cli.harness import finish, spawn
from tests.conftest import TEXT
from tests.format.archives import Forgery
from tests.tiny import CHAT_TEMPLATE, make_model_folder


def test_inspect_shows_what_was_kept(run: Run, archive: Path, tiny_folder: Path) -> None:
    outcome = run("inspect", archive).succeeded()
    info = kvz.load(archive).manifest.compression
    length = len(TEXT.encode())
    assert f"{info.pairs_kept} of {6 * length:,} pairs (40.0 %)" in outcome.text
    assert f"{length} context" in outcome.text
    assert hashlib.sha256(TEXT.encode()).hexdigest()[:16] in outcome.text
    assert str(tiny_folder) in outcome.text
    assert "3 layers, 6 query heads, 2 KV heads of 16" in outcome.text
    for index, row in enumerate(info.kept):
        (line,) = [line for line in outcome.text.splitlines() if line.split()[:1] == [str(index)]]
        assert line.split()[-2:] == [f"{100 * kept / length:.1f}" for kept in row]
    assert outcome.err == ""


def test_inspect_json_holds_the_manifest(run: Run, archive: Path) -> None:
    (shown,) = run("inspect", archive, "--json").succeeded().objects
    manifest = open_archive(archive).manifest
    assert shown["manifest"] == msgspec.json.decode(msgspec.json.encode(manifest))
    assert shown["file_bytes"] == archive.stat().st_size == sum(shown["bytes"].values())
    assert shown["format_version"] == "1.2"


def test_inspect_shows_what_is_special(run: Run, compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "--omit-text", "--system", "Be brief.", "--budget", 30).succeeded()
    text = run("inspect", out / "a.kvz").succeeded().text
    assert "left out" in text
    assert "system text" in text
    assert "--budget 30" in text


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J\x1b[31mred", "bell\x07", "\u202egnp.exe"])
def test_inspect_shows_control_characters_of_a_name_as_text(run: Run, archive: Path, tmp_path: Path, name: str) -> None:
    forged = Forgery.of(archive)
    for part, key in (("source", "name"), ("creator", "name"), ("model", "id"), ("compression", "method")):
        forged.manifest[part][key] = name
    (tmp_path / "a.kvz").write_bytes(forged.sealed())
    text = run("inspect", tmp_path / "a.kvz").succeeded().text
    assert len(text.splitlines()) == len(run("inspect", archive).text.splitlines())
    assert [c for c in text if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_is_no_archive(run: Run, command: str, tmp_path: Path, archive: Path) -> None:
    (tmp_path / "empty.kvz").touch()
    (tmp_path / "half.kvz").write_bytes(archive.read_bytes()[:600])
    run(command, tmp_path / "missing.kvz").failed("no such archive")
    run(command, tmp_path).failed("a folder")
    run(command, tmp_path / "empty.kvz").failed("not a .kvz archive")
    run(command, tmp_path / "half.kvz").failed("truncated")
    run(command).failed("ARCHIVE", status=2)


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    process = spawn("inspect", str(tmp_path / "pipe"))
    try:
        process.wait(5)
    finally:
        process.kill()
        outcome = finish(process)
    outcome.failed(str(tmp_path / "pipe"), "pipe or device")


def test_a_newer_version_asks_for_a_newer_kvz(run: Run, archive: Path, tmp_path: Path) -> None:
    forged = Forgery.of(archive)
    forged.metadata["kvz_version"] = "2.0"
    (tmp_path / "a.kvz").write_bytes(forged.sealed())
    for command in ("inspect", "verify"):
        run(command, tmp_path / "a.kvz").failed("format version 2.0", "newer")


def test_verify_of_a_sound_archive(run: Run, archive: Path, tiny_folder: Path) -> None:
    plain = run("verify", archive).succeeded()
    assert f"{archive}: sound" in plain.text
    (shown,) = run("verify", archive, "--json", "-m", tiny_folder).succeeded().objects
    header = open_archive(archive).header
    assert (shown["ok"], shown["model"]) == (True, str(tiny_folder))
    assert (shown["tensors"], shown["bytes"]) == (len(header.tensors), header.file_size - header.data_start)


@pytest.mark.parametrize("kind", ["keys", "positions", "offsets"])
def test_verify_names_the_damaged_tensor(run: Run, archive: Path, tmp_path: Path, kind: str) -> None:
    header = open_archive(archive).header
    data = bytearray(archive.read_bytes())
    data[header.data_start + header.tensors[f"layers.2.{kind}"].begin] ^= 4
    (tmp_path / "a.kvz").write_bytes(data)
    run("verify", tmp_path / "a.kvz").failed(f"layers.2.{kind}", "checksum")
    run("verify", tmp_path / "a.kvz", "--json").failed(f"layers.2.{kind}")


@pytest.mark.parametrize(
    ("part", "field", "value", "words"),
    [
        ("model", "query_heads", 7, "query_heads"),
        ("model", "max_positions", 20, "max_positions"),
        ("compression", "ratio", 7, "ratio"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_manifest_that_the_format_forbids(
    run: Run, archive: Path, tmp_path: Path, command: str, part: str, field: str, value: int, words: str
) -> None:
    forged = Forgery.of(archive)
    forged.manifest[part][field] = value
    (tmp_path / "a.kvz").write_bytes(forged.sealed())
    run(command, tmp_path / "a.kvz").failed(words, "damaged")


def test_verify_looks_at_what_the_checksums_cannot_tell(run: Run, archive: Path, tmp_path: Path) -> None:
    forged = Forgery.of(archive)
    begin, end = forged.table["layers.0.planes"]["data_offsets"]
    forged.put("layers.0.planes", bytes(end - begin))
    (tmp_path / "a.kvz").write_bytes(forged.sealed())
    run("verify", tmp_path / "a.kvz").failed("layer 0", "bit planes", "damaged")


def test_verify_with_a_model_compares_token_ids_with_its_vocabulary(
    run: Run, archive: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    forged = Forgery.of(archive)
    begin, end = forged.table["token_ids"]["data_offsets"]
    forged.put("token_ids", bytes(end - begin - 4) + (2**30).to_bytes(4, "little"))
    (tmp_path / "a.kvz").write_bytes(forged.sealed())
    run("verify", tmp_path / "a.kvz").succeeded()
    run("verify", tmp_path / "a.kvz", "-m", tiny_folder).failed("token ids", "damaged")


def test_inspect_reads_the_header_only(run: Run, archive: Path, tmp_path: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[-1] ^= 1
    (tmp_path / "a.kvz").write_bytes(data)
    run("inspect", tmp_path / "a.kvz").succeeded()


DATED = "{{ '<|im_start|>system\nToday Date: ' + strftime_now('%d %b %Y') + '<|im_end|>\n' }}" + CHAT_TEMPLATE


def prefix_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.split()[:1] == ["prefix"]]
    return line.split(maxsplit=1)[1]


def test_inspect_v_shows_a_date_that_the_template_put_into_the_prefix(
    run: Run, compress: Run, text_file: Path, out: Path, tmp_path: Path
) -> None:
    folder = make_model_folder(tmp_path / "dated", template=DATED)
    days = [f"{datetime.date.today():%d %b %Y}"]
    compress(text_file, "--system", "Be brief.\n\x1b[2J", model=folder).succeeded()
    days.append(f"{datetime.date.today():%d %b %Y}")
    want = [
        rf"<|im_start|>system\nToday Date: {day}<|im_end|>\n"
        r"<|im_start|>system\nBe brief.\n\x1b[2J<|im_end|>\n<|im_start|>user\n"
        for day in days
    ]
    text = run("inspect", out / "a.kvz", "-v").succeeded().text
    assert prefix_line(text) in want
    plain = run("inspect", out / "a.kvz").succeeded().text
    assert [line for line in text.splitlines() if not line.startswith("   prefix")] == plain.splitlines()
    (shown,) = run("inspect", out / "a.kvz", "--json", "-v").succeeded().objects
    assert shown["prefix"] in [line.encode().decode("unicode_escape") for line in want]
    assert "prefix" not in run("inspect", out / "a.kvz", "--json").objects[0]
    assert "Today Date" in run("inspect", out / "a.kvz", "-v", "--html", "-").succeeded().text


def test_a_long_prefix_is_cut_in_the_middle(run: Run, compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "--system", "Begin. " + "All work and no play. " * 90 + "Today is Monday.").succeeded()
    line = prefix_line(run("inspect", out / "a.kvz", "-v").succeeded().text)
    assert len(line) < 1000
    assert r"<|im_start|>system\nBegin. All work" in line
    assert r"play. Today is Monday.<|im_end|>\n<|im_start|>user\n" in line
    assert re.search(r" \.\.\. \(1,\d\d\d characters\) \.\.\. ", line)


def test_why_a_prefix_is_not_shown(
    run: Run, compress: Run, text_file: Path, out: Path, tmp_path: Path, tiny_folder: Path, other_tokenizer: Path
) -> None:
    gone = tmp_path / "gone"
    shutil.copytree(tiny_folder, gone)
    compress(text_file, model=gone).succeeded()
    gone.rename(tmp_path / "moved")
    assert "is not on this machine" in prefix_line(run("inspect", out / "a.kvz", "-v").succeeded().text)
    moved = run("inspect", out / "a.kvz", "-v", "-m", tmp_path / "moved").succeeded()
    assert prefix_line(moved.text) == r"<|im_start|>user\n"
    run("inspect", out / "a.kvz", "-v", "-m", other_tokenizer).failed("the tokenizer of")
    (shown,) = run("inspect", out / "a.kvz", "--json", "-v").succeeded().objects
    assert shown["prefix"] is None
    compress(text_file, "--omit-text", "--force").succeeded()
    assert "--omit-text" in prefix_line(run("inspect", out / "a.kvz", "-v").succeeded().text)
    plain = make_model_folder(tmp_path / "plain", template=None)
    compress(text_file, "--force", model=plain).succeeded()
    assert prefix_line(run("inspect", out / "a.kvz", "-v").succeeded().text) == "none"
    run("inspect", out / "a.kvz", "-m", plain).failed("-m", "--html", status=2)


def test_token_ids_are_compared_with_their_checksum_before_they_are_shown(
    run: Run, archive: Path, tmp_path: Path
) -> None:
    header, data = open_archive(archive).header, bytearray(archive.read_bytes())
    data[header.data_start + header.tensors["token_ids"].begin] ^= 1
    (tmp_path / "a.kvz").write_bytes(data)
    run("inspect", tmp_path / "a.kvz", "-v").failed("token_ids", "checksum")
