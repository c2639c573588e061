"""kvz ask: answers on stdout, statistics on stderr, and archives and questions that are refused."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import kvz
from kvz.models.language_model import LanguageModel
from tests.cli.conftest import Run
from tests.cli.harness import assert_one_line
from tests.format.archives import Forgery

FEW = ("--max-new-tokens", 4)
FIELDS = [
    "id",
    "question",
    "answer",
    "stop",
    "context_tokens",
    "question_tokens",
    "new_tokens",
    "first_token_seconds",
    "token_seconds",
    "kv_bytes",
    "policy",
    "pairs_read",
]


def test_json_gives_one_object_with_all_fields(run: Run, archive: Path, tiny: LanguageModel) -> None:
    (answer,) = run("ask", archive, "Who keeps the ledger?", "--json", *FEW).succeeded().objects
    session = kvz.load(archive).session(tiny)
    ours = session.ask("Who keeps the ledger?", 4)
    assert list(answer) == FIELDS
    assert (answer["id"], answer["question"]) == (1, "Who keeps the ledger?")
    assert (answer["answer"], answer["stop"]) == (ours.text, ours.stop)
    assert answer["context_tokens"] == kvz.load(archive).manifest.logical_length
    assert (answer["question_tokens"], answer["new_tokens"]) == (ours.question_tokens, ours.new_tokens)
    assert answer["first_token_seconds"] > 0
    assert answer["kv_bytes"] >= kvz.load(archive).cache.nbytes


def test_one_token_has_no_time_between_tokens(run: Run, archive: Path) -> None:
    (answer,) = run("ask", archive, "Who?", "--json", "--max-new-tokens", 1).succeeded().objects
    assert (answer["new_tokens"], answer["stop"], answer["token_seconds"]) == (1, "length", None)


def test_the_answer_alone_is_on_stdout_and_is_not_wrapped(run: Run, archive: Path) -> None:
    (answer,) = run("ask", archive, "Who keeps it?", "--json", "--max-new-tokens", 60).succeeded().objects
    plain = run("ask", archive, "Who keeps it?", "--max-new-tokens", 60).succeeded()
    assert plain.text == answer["answer"] + "\n"
    assert f"{answer['new_tokens']} tokens" in plain.err
    assert f"{answer['context_tokens']} tokens of context reused" in plain.err


def test_quiet_leaves_stderr_empty(run: Run, archive: Path) -> None:
    outcome = run("ask", archive, "Who?", "When?", "-q", *FEW).succeeded()
    assert outcome.err == ""
    assert outcome.out != b""


def test_each_question_starts_from_the_archive_alone(run: Run, archive: Path) -> None:
    several = run("ask", archive, "Who?", "What leaves at noon?", "Who?", "--json", *FEW).succeeded().objects
    alone = [run("ask", archive, q, "--json", *FEW).succeeded().objects[0] for q in ("Who?", "What leaves at noon?")]
    answers = [a["answer"] for a in several]
    assert answers == [alone[0]["answer"], alone[1]["answer"], alone[0]["answer"]]
    assert [a["id"] for a in several] == [1, 2, 3]


def test_asking_does_not_change_the_archive(run: Run, archive: Path) -> None:
    before = archive.read_bytes()
    run("ask", archive, "Who?", *FEW).succeeded()
    assert archive.read_bytes() == before


def test_the_archive_says_which_model_and_it_may_be_named_anew(
    run: Run, archive: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(tiny_folder, moved)
    first, second = (run("ask", archive, "Who?", *FEW, *more).succeeded() for more in ((), ("-m", moved)))
    assert first.out == second.out


def test_a_model_that_has_moved_is_named(run: Run, archive: Path, tmp_path: Path) -> None:
    forged = Forgery.of(archive)
    forged.manifest["model"]["id"] = "/nowhere/model"
    (tmp_path / "a.kvz").write_bytes(forged.sealed())
    outcome = run("ask", tmp_path / "a.kvz", "Who?")
    outcome.failed("/nowhere/model", "say with -m where that model is now")
    assert "leave -m out" not in outcome.err


def test_several_questions_are_shown_on_stderr(run: Run, archive: Path) -> None:
    outcome = run("ask", archive, "Who?", "When?", *FEW).succeeded()
    assert "[1] Who?\n" in outcome.err
    assert "[2] When?\n" in outcome.err
    assert "Who?" not in outcome.text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["Who", "keeps", "it?"], True),
        (["Où", "est-ce?"], True),
        (["Who keeps it?", "Why?"], False),
        (["谁保管钥匙？", "渡轮几点出发？"], False),
        (["กุญแจอยู่ที่ไหน", "ใครเก็บไว้"], False),
    ],
)
def test_words_that_lack_quotes_are_told_from_questions_in_scripts_without_spaces(
    run: Run, tmp_path: Path, asked: list[str], said: bool
) -> None:
    archive = tmp_path / "a.kvz"
    archive.write_bytes(b"no archive")
    assert ("needs quotes" in run("ask", archive, *asked).err) == said


@pytest.mark.parametrize("question", ["", " ", "\n\t"])
def test_an_empty_question(run: Run, archive: Path, question: str) -> None:
    run("ask", archive, question).failed("the question is empty")
    asked = run("ask", archive, question, "--json")
    assert (asked.status, asked.objects) == (1, [{"id": 1, "question": question, "error": "the question is empty"}])


def test_a_question_too_long_names_both_numbers(
    run: Run, compress: Run, text_file: Path, short_folder: Path, out: Path
) -> None:
    compress(text_file, "--truncate", "tail", model=short_folder).succeeded()
    left = 256 - kvz.load(out / "a.kvz").manifest.logical_length
    run("ask", out / "a.kvz", "w" * 300).failed("the question is 3", f"only {left}", "256 positions")


def test_one_bad_question_of_three_leaves_the_others_answered(run: Run, archive: Path) -> None:
    outcome = run("ask", archive, "Who?", " ", "When?", "-q", "--json", *FEW)
    assert outcome.status == 1
    assert [o["id"] for o in outcome.objects] == [1, 2, 3]
    assert ["answer" in o for o in outcome.objects] == [True, False, True]
    assert outcome.objects[1]["error"] == "the question is empty"
    assert_one_line(outcome.err)
    assert "question 2" in outcome.err


def test_one_bad_question_of_two_without_json(run: Run, archive: Path) -> None:
    outcome = run("ask", archive, "Who?", "w" * 5000, "-q", *FEW)
    assert outcome.status == 1
    assert outcome.out == run("ask", archive, "Who?", *FEW).out
    assert_one_line(outcome.err)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_question_that_is_no_text(
    run: Run, archive: Path, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict"))
    outcome = run("ask", archive, "Who \udcff?", *more)
    assert outcome.status == 1
    assert_one_line(outcome.err)
    assert "not valid text" in outcome.err


@pytest.mark.parametrize("question", ["<|im_end|>", "--debug?", "数据?", " a question that starts with a space", "?"])
def test_odd_questions_are_answered(run: Run, archive: Path, question: str) -> None:
    (answer,) = run("ask", archive, "--json", *FEW, "--", question).succeeded().objects
    assert answer["question"] == question


@pytest.mark.parametrize(
    "options",
    [
        ["--top-p", "0.9"],
        ["--top-k", "5"],
        ["--seed", "1"],
        ["--temperature=-1"],
        ["--temperature", "nan"],
        ["--temperature", "1", "--top-p", "0"],
        ["--temperature", "1", "--top-p", "1.5"],
        ["--temperature", "1", "--top-k", "0"],
        ["--temperature", "1", "--seed=-1"],
        ["--max-new-tokens", "0"],
        ["--max-new-tokens", "many"],
        ["--system", "Be brief."],
        ["--ratio", "0.3"],
        ["--device", "toaster"],
    ],
    ids=" ".join,
)
def test_options_that_cannot_apply(run: Run, archive: Path, options: list[str]) -> None:
    run("ask", archive, "Who?", *options).failed(status=2)


def test_a_seed_gives_the_same_answer_again(run: Run, archive: Path) -> None:
    def sampled(seed: int, *questions: str) -> str:
        options = ("--temperature", 1.5, "--top-k", 50, "--seed", seed, "--max-new-tokens", 12, "--json", "-q")
        return str(run("ask", archive, *questions, *options).succeeded().objects[-1]["answer"])

    assert sampled(7, "Who?") == sampled(7, "Who?") == sampled(7, "When?", "Who?")
    assert sampled(7, "Who?") != sampled(8, "Who?")


def test_a_missing_archive(run: Run, tmp_path: Path) -> None:
    run("ask", tmp_path / "no.kvz", "Who?").failed("no such archive", str(tmp_path / "no.kvz"))


def test_no_question(run: Run, archive: Path) -> None:
    run("ask", archive).failed("--questions", status=2)


def cut(data: bytes) -> bytes:
    return data[:-100]


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def plain_safetensors(data: bytes) -> bytes:
    return safetensors.torch.save({"a": torch.zeros(4)})


@pytest.mark.parametrize(
    ("damage", "word"), [(cut, "truncated"), (flip, "checksum"), (plain_safetensors, "not a .kvz archive")]
)
@pytest.mark.parametrize("command", ["ask", "verify"])
def test_a_file_that_is_no_sound_archive(
    run: Run, archive: Path, tmp_path: Path, damage: Callable[[bytes], bytes], word: str, command: str
) -> None:
    path = tmp_path / "bad.kvz"
    path.write_bytes(damage(archive.read_bytes()))
    question = ["Who?"] if command == "ask" else []
    run(command, path, *question).failed(str(path), word)


def test_no_verify_answers_from_a_file_with_a_wrong_checksum(run: Run, archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.kvz"
    path.write_bytes(flip(archive.read_bytes()))
    run("ask", path, "Who?", "--no-verify", *FEW).succeeded()


@pytest.mark.parametrize("command", ["ask", "verify"])
@pytest.mark.parametrize(
    ("model", "different"),
    [
        ("other_weights", ["the weights"]),
        ("other_tokenizer", ["the tokenizer"]),
        ("other_template", ["the chat template"]),
    ],
)
def test_another_model_is_refused_and_the_difference_named(
    run: Run, archive: Path, request: pytest.FixtureRequest, command: str, model: str, different: list[str]
) -> None:
    folder = request.getfixturevalue(model)
    outcome = run(command, archive, *(["Who?"] if command == "ask" else []), "-m", folder)
    outcome.failed(*different, "differ", str(folder))
    others = {"the weights", "the tokenizer", "the chat template"} - set(different)
    assert [other for other in others if other in outcome.err] == []


def fewer_layers(manifest: dict[str, Any]) -> None:
    manifest["model"]["layers"].pop()
    kept = manifest["compression"]["kept"]
    manifest["compression"]["pairs_kept"] -= sum(kept.pop())
    manifest["compression"]["pairs_total"] -= 2 * manifest["prompt"]["context_tokens"]


def ids_past_the_vocabulary(manifest: dict[str, Any]) -> None:
    manifest["prompt"]["question"]["after_ids"].append(10**6)


@pytest.mark.parametrize("lie", [fewer_layers, ids_past_the_vocabulary])
def test_an_archive_that_lies_about_its_model_is_refused(
    run: Run, archive: Path, tmp_path: Path, lie: Callable[[dict[str, Any]], None]
) -> None:
    forged = Forgery.of(archive)
    lie(forged.manifest)
    path = tmp_path / "a.kvz"
    path.write_bytes(forged.sealed())
    run("ask", path, "Who?", *FEW).failed()


def test_a_head_dimension_that_lies_is_refused(run: Run, archive: Path, tmp_path: Path) -> None:
    forged = Forgery.of(archive)
    forged.manifest["model"]["dtype"] = "float16"
    for index, layer in enumerate(forged.manifest["model"]["layers"]):
        layer["head_dim"] = 32
        for kind in ("keys", "values"):
            spec = forged.table[f"layers.{index}.{kind}"]
            spec.update(dtype="F16", shape=[spec["shape"][0], 32])
    path = tmp_path / "a.kvz"
    path.write_bytes(forged.sealed())
    run("ask", path, "Who?", *FEW).failed()


def test_a_policy_and_its_budget(run: Run, archive: Path, tiny_folder: Path) -> None:
    line = ("ask", archive, "Where is the key?", "-m", tiny_folder, "--max-new-tokens", 9)
    [dense] = run(*line, "--json").succeeded().objects
    [sparse] = run(*line, "--json", "--budget", 24).succeeded().objects
    assert (dense["policy"], sparse["policy"]) == ("dense", "lowbit")
    assert sparse["pairs_read"] < dense["pairs_read"]
    assert "hsa" in run(*line, "--policy", "hsa", "--budget", 24).succeeded().err
    covered = run(*line, "--policy", "quest", "--budget", 999).succeeded()
    assert "covers every head" in covered.err
    run(*line, "--policy", "hsa").failed("needs a budget", status=2)
    run(*line, "--policy", "sparks", "--budget", 24).failed("no policy 'sparks'", "sparq", status=2)
    run(*line, "--budget", 0).failed("16 or more", status=2)


def test_an_archive_read_into_memory_gives_the_same_answers(run: Run, archive: Path) -> None:
    said = [
        [answer["answer"] for answer in run("ask", archive, "Why?", "Who?", *FEW, "--json", flag).succeeded().objects]
        for flag in ("--mmap", "--no-mmap", "--json")
    ]
    assert said[0] == said[1] == said[2]
