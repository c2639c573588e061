"""Streams that close, fill up or cannot hold a character; and progress, which only a terminal sees."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.harness import ENVIRONMENT, assert_one_line, finish, spawn

full_device = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("command", ["ask", "inspect", "--help", "--version"])
def test_a_reader_that_has_gone_is_no_drama(archive: Path, command: str) -> None:
    arguments = {"ask": ["ask", str(archive), "Who?", "-q"], "inspect": ["inspect", str(archive)]}
    outcome = finish(spawn(*arguments.get(command, [command]), stdout=closed_pipe()))
    assert outcome.status == 1
    assert outcome.err == ""


def test_an_archive_piped_to_nobody(tiny_folder: Path, text_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = ["compress", str(text_file), "-m", str(tiny_folder), "-q", "-o", "-"]
    environment = {**ENVIRONMENT, "TMPDIR": str(folder)}
    outcome = finish(spawn(*command, stdout=closed_pipe(), env=environment))
    assert outcome.status == 1
    assert "Traceback" not in outcome.err
    assert os.listdir(folder) == []


@full_device
@pytest.mark.parametrize("command", ["inspect", "--help"])
def test_a_full_disk_behind_stdout(archive: Path, command: str) -> None:
    arguments = [command, str(archive)] if command == "inspect" else [command]
    with open("/dev/full", "wb") as full:
        outcome = finish(spawn(*arguments, stdout=full))
    assert outcome.status == 1
    assert_one_line(outcome.err)
    assert "No space left" in outcome.err


@full_device
def test_a_full_disk_behind_an_answer(archive: Path) -> None:
    with open("/dev/full", "wb") as full:
        outcome = finish(spawn("ask", str(archive), "Who?", "-q", stdout=full))
    assert outcome.status == 1
    assert_one_line(outcome.err)
    assert "No space left" in outcome.err


def test_closed_stdout_is_told_in_words(archive: Path) -> None:
    process = spawn("inspect", str(archive), preexec_fn=lambda: os.close(1), stdout=None)
    outcome = finish(process)
    assert outcome.status == 1
    assert_one_line(outcome.err)


def test_an_archive_for_a_closed_stdout_is_refused(
    compress: Run, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    compress(text_file, "-q", "-o", "-").failed("standard output")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_stdout_that_cannot_hold_every_character_holds_the_others(archive: Path, encoding: str) -> None:
    outcome = finish(spawn("inspect", str(archive), env={**ENVIRONMENT, "PYTHONIOENCODING": encoding}))
    assert outcome.status == 0, outcome.err
    assert b"pairs (40.0 %)" in outcome.out
    assert b"each head" in outcome.out
    assert outcome.out.count(b"\n") == 17


def test_json_is_json_in_any_encoding(run: Run, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    outcome = run("ask", archive, "数据 🙂?", "--json", "--max-new-tokens", 2)
    assert outcome.status == 0, outcome.err
    assert json.loads(raw.getvalue())["question"] == "数据 🙂?"


def test_closed_stderr_keeps_nobody_from_an_answer(run: Run, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = run("ask", archive, "Who?", "--max-new-tokens", 2).succeeded().out
    monkeypatch.setattr("sys.stderr", None)
    outcome = run("ask", archive, "Who?", "--max-new-tokens", 2)
    assert (outcome.status, outcome.out) == (0, answer)
    assert run("ask", archive, " ").status == 1


def test_no_bar_is_drawn_where_stderr_is_no_terminal(run: Run, archive: Path) -> None:
    outcome = run("ask", archive, "Who?", "--max-new-tokens", 2)
    assert "\x1b" not in outcome.text + outcome.err
    assert "\r" not in outcome.err


NO_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_text_is_utf8_in_any_locale(tiny_folder: Path, tmp_path: Path) -> None:
    """What bytes an argument has does not change with the locale, nor what it means."""
    environment = {**ENVIRONMENT, **NO_UTF8}
    path, archive = tmp_path / "text.txt", str(tmp_path / "a.kvz")
    path.write_text("Le café est à Zoë. " * 9, encoding="utf-8")
    options = ["--dtype", "float32", "--system", "Réponds.", "--protect-text", "à Zoë", "--method", "snapkv"]
    command = ["compress", str(path), "-m", str(tiny_folder), *options, "--query", "Où?", "-o", archive, "-q"]
    made = finish(spawn(*command, env=environment))
    assert (made.status, made.err) == (0, "")
    manifest = json.loads(finish(spawn("inspect", archive, "--json")).text)["manifest"]
    assert manifest["prompt"]["system"] == "Réponds."
    assert manifest["compression"]["parameters"]["query"] == "Où?"
    asked = finish(spawn("ask", archive, "Où est le café?", "--max-new-tokens", "2", "--json", "-q", env=environment))
    assert (asked.status, asked.err) == (0, "")
    assert asked.objects[0]["question"] == "Où est le café?"
