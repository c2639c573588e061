"""kvz chat from a pipe and in a terminal, and kvz ask with turns and batches."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

import kvz
from kvz.decode.conversation import Conversation
from kvz.models.language_model import LanguageModel
from tests.cli.conftest import Run
from tests.cli.harness import TIMEOUT, Outcome, react_to_interrupts, spawn
from tests.tiny import make_model_folder

TURNS = ["Where is the key?", "Who keeps it?", "Why?", "Where is the key?"]
FEW = ("--max-new-tokens", "12")


@pytest.fixture
def expected(archive: Path, tiny: LanguageModel) -> list[str]:
    talk = Conversation(kvz.load(archive).session(tiny))
    return [talk.ask(turn, 12).text for turn in TURNS]


def lines(turns: list[str]) -> bytes:
    return "".join(f"{turn}\n" for turn in turns).encode()


def test_a_pipe_of_turns_is_one_conversation(run: Run, archive: Path, expected: list[str]) -> None:
    told = run("chat", archive, *FEW, "--json", stdin=lines(["", *TURNS, "  "])).succeeded()
    assert [answer["answer"] for answer in told.objects] == expected
    assert [answer["id"] for answer in told.objects] == [1, 2, 3, 4]
    plain = run("chat", archive, *FEW, stdin=b"\xef\xbb\xbf" + lines(TURNS)[:-1].replace(b"\n", b"\r\n")).succeeded()
    assert plain.text == "".join(f"{text}\n" for text in expected)
    assert plain.err.count(" tokens/s") >= 1
    assert run("chat", archive, *FEW, "-q", stdin=lines(TURNS)).succeeded().err == ""


def test_turns_of_a_file_are_the_same_conversation(
    run: Run, archive: Path, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "turns.jsonl").write_text("".join(json.dumps({"question": turn}) + "\n" for turn in TURNS))
    told = run("ask", archive, "--turns", tmp_path / "turns.jsonl", *FEW, "--json").succeeded()
    assert [answer["answer"] for answer in told.objects] == expected
    (tmp_path / "bad.jsonl").write_text('{"question": "Who?"}\n{"answer": "He."}\n')
    run("ask", archive, "--turns", tmp_path / "bad.jsonl").failed("bad.jsonl, line 2", '"question"')
    run("ask", archive, "Who?", "--turns", tmp_path / "turns.jsonl").failed("--turns", status=2)
    run("ask", archive, "--turns", "-", "--batch-size", 3, stdin=b"Who?\n").failed("--batch-size", status=2)


def test_commands(run: Run, archive: Path, expected: list[str], out: Path) -> None:
    save = out / "talk.jsonl"
    script = [TURNS[0], "/stats", "/budget 16", "/stats", "/budget off", TURNS[1], f"/save {save}", f"/save {save}"]
    script += [
        "/reset",
        TURNS[0],
        "/help",
        "/budget x",
        "/budget 3",
        "/save",
        "/save a\0b",
        f"/save {out}",
        "/nonsense",
    ]
    script += ["/quit", "never asked"]
    told = run("chat", archive, *FEW, stdin=lines(script))
    assert told.status == 1  # some of the commands failed
    assert told.text == f"{expected[0]}\n{expected[1]}\n{expected[0]}\n"
    for words in ("1 turn,", "read by lowbit", "read by dense", "2 turns written", "exists", "forgotten", "/reset"):
        assert words in told.err
    for words in (
        "give a number of pairs",
        "16 or more",
        "give a file",
        "no command /nonsense",
        "no file can be named",
    ):
        assert f"kvz: {words}" in told.err or words in told.err
    saved = [json.loads(line) for line in save.read_text().splitlines()]
    assert saved == [{"question": q, "answer": a} for q, a in zip(TURNS[:2], expected, strict=False)]
    again = run("ask", archive, "--turns", save, *FEW, "--json").succeeded()
    assert [answer["answer"] for answer in again.objects] == expected[:2]


def test_a_turn_that_cannot_be_asked_is_reported_and_the_others_go_on(
    run: Run, archive: Path, expected: list[str]
) -> None:
    told = run("chat", archive, *FEW, "--json", stdin=lines(["q" * 9000, TURNS[0]]))
    assert told.status == 1
    assert "error" in told.objects[0]
    assert told.objects[1]["answer"] == expected[0]
    run("chat", archive, stdin=b"\xff\xfe\n").failed("line 1", "UTF-8")
    run("chat", "-").failed("give a file", status=2)
    run("chat", "nowhere.kvz").failed("nowhere.kvz")
    run("chat", archive, "--policy", "hsa").failed("needs a budget", status=2)
    run("chat", archive, stdin=b"").succeeded()


@pytest.mark.parametrize("size", ["auto", "2", "500"])
def test_a_batch_answers_in_order_and_reports_the_bad_ones(run: Run, archive: Path, size: str) -> None:
    asked = ["Where is the key?", "", "Who keeps it?", "q" * 9000, "Why?"]
    stdin = "".join(json.dumps({"question": text, "id": f"n{i}"}) + "\n" for i, text in enumerate(asked)).encode()
    alone = run("ask", archive, "--questions", "-", *FEW, "--json", stdin=stdin)
    batch = run("ask", archive, "--questions", "-", *FEW, "--json", "--batch-size", size, stdin=stdin)
    assert alone.status == batch.status == 1
    assert [o["id"] for o in batch.objects] == [f"n{i}" for i in range(5)]
    assert [o.get("answer") for o in batch.objects] == [o.get("answer") for o in alone.objects]
    assert [o.get("error") for o in batch.objects] == [o.get("error") for o in alone.objects]
    plain = run("ask", archive, "Where is the key?", "Who keeps it?", *FEW, "--batch-size", size).succeeded()
    assert plain.text == "".join(f"{o['answer']}\n" for o in alone.objects if "answer" in o and o["id"] in ("n0", "n2"))


@pytest.mark.parametrize("size", ["0", "-1", "x", "", "99999999999", "1.5"])
def test_batch_sizes_that_make_no_sense(run: Run, archive: Path, size: str) -> None:
    run("ask", archive, "Who?", "--batch-size", size).failed("batch size", status=2)


def test_a_budget_in_a_batch_reads_what_is_less(run: Run, archive: Path) -> None:
    asked = ["Where is the key?", "Who keeps it?"]
    alone = run("ask", archive, *asked, "--budget", 60, *FEW, "--json").succeeded().objects
    many = run("ask", archive, *asked, "Why?", "--budget", 60, *FEW, "--json", "--batch-size", 3).succeeded().objects
    assert {answer["policy"] for answer in alone} == {"lowbit"}
    assert {answer["policy"] for answer in many} == {"dense"}
    named = ("--policy", "hsa", "--batch-size", 2)
    assert run("ask", archive, *asked, "--budget", 32, *FEW, "--json", *named).objects[0]["policy"] == "hsa"
    turned = run("ask", archive, *asked, "--budget", 32, "--policy", "rocketkv-mt", "--batch-size", 2)
    turned.failed("one question at a time", status=2)


def test_a_budget_keeps_the_page_size(run: Run, archive: Path) -> None:
    script = [TURNS[0], "/reset", "/budget 32", TURNS[0]]
    options = ("--policy", "hsa", "--budget", 32, "--page-size", 8, "--json", *FEW)
    told = run("chat", archive, *options, stdin=lines(script)).succeeded()
    assert told.objects[0]["pairs_read"] == told.objects[1]["pairs_read"]


def test_a_budget_that_covers_everything_is_said_unless_quiet(run: Run, archive: Path) -> None:
    assert "covers every head" in run("chat", archive, "--budget", 5000, stdin=b"").succeeded().err
    assert run("chat", archive, "--budget", 5000, "-q", stdin=b"/reset\n").succeeded().err == ""


@pytest.mark.parametrize("change", ["cut", "overwritten"])
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_an_archive_changed_in_place_between_two_turns(
    archive: Path, expected: list[str], tmp_path: Path, mapped: bool, change: str
) -> None:
    path = tmp_path / "a.kvz"
    path.write_bytes(archive.read_bytes())
    chat = spawn("chat", str(path), *FEW, "--json", "--mmap" if mapped else "--no-mmap", stdin=subprocess.PIPE)
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdin.write(lines(TURNS[:1]))
    chat.stdin.flush()
    assert json.loads(chat.stdout.readline())["answer"] == expected[0]
    if change == "cut":
        os.truncate(path, 0)
    else:
        path.write_bytes(bytes(path.stat().st_size))
    out, err = chat.communicate(lines(TURNS[1:2]), timeout=TIMEOUT)
    if mapped:
        Outcome(chat.returncode, out, err.decode()).failed(f"{path} was changed in place")
    else:
        assert json.loads(out)["answer"] == expected[1]
        assert (chat.returncode, err) == (0, b"")


def test_sigterm_ends_a_chat_in_a_terminal(archive: Path) -> None:
    master, slave = pty.openpty()
    chat = spawn("chat", str(archive), stdin=slave, stdout=slave, stderr=slave)
    seen, deadline = b"", time.monotonic() + TIMEOUT
    while b"> " not in seen and time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 1 << 16)
    time.sleep(1)  # readline looks for signals only once it waits
    chat.send_signal(signal.SIGTERM)
    assert chat.wait(TIMEOUT) == 130
    os.close(master)
    os.close(slave)


def test_ctrl_c_in_a_terminal_stops_an_answer_and_not_the_chat(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "slow", layers=12, max_position_embeddings=16384, eos_token_id=None)
    archive = tmp_path / "a.kvz"
    kvz.compress("All work and no play. " * 9, str(folder), ratio=0.5, device="cpu", dtype="float32").save(archive)
    master, slave = pty.openpty()
    options = {"stdin": slave, "stdout": slave, "stderr": slave, "preexec_fn": react_to_interrupts}
    chat = spawn("chat", str(archive), "--max-new-tokens", "16000", **options)
    seen = b""

    def wait_for(text: bytes, after: int = 0) -> None:
        nonlocal seen
        deadline = time.monotonic() + TIMEOUT
        while text not in seen[after:]:
            assert time.monotonic() < deadline, seen
            if select.select([master], [], [], 0.2)[0]:
                seen += os.read(master, 1 << 16)

    wait_for(b"> ")
    os.write(master, b"Who?\n")
    begun = len(seen) + 8
    deadline = time.monotonic() + TIMEOUT
    while len(seen) < begun + 20 and time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 1 << 16)
    chat.send_signal(signal.SIGINT)
    wait_for(b"answer stopped")
    at = len(seen)
    os.write(master, b"/stats\n")
    wait_for(b"1 turn,", at)
    os.write(master, b"/quit\n")
    assert chat.wait(TIMEOUT) == 0
    os.close(master)
    os.close(slave)
