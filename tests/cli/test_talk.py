"""What a chat shows of its turns and commands, and what it goes on after."""

from __future__ import annotations

import io
import json
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvz
from kvz.cli import console
from kvz.cli.answers import say_covered
from kvz.cli.chat import _take
from kvz.cli.chat_commands import ChatCommands
from kvz.cli.signals import InterruptHandler
from kvz.cli.talk import Talk, outlives
from kvz.config import Decoding, Sampling
from kvz.decode.conversation import Conversation
from kvz.decode.sampling import Sampler
from kvz.decode.session import Session
from kvz.errors import DecodeError, OutputError
from kvz.models.language_model import LanguageModel

Output = pytest.CaptureFixture[str]


class Stdin(io.StringIO):
    """A standard input that is a terminal, or is none."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(True))


@pytest.fixture
def session(archive: Path, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> Session:
    """One whose answers go to their limit, without kernels that would have to be compiled first."""
    monkeypatch.setattr("kvz.kernels.decode_step._has_numba", lambda: False)
    made = kvz.load(archive).session(tiny, Decoding())
    made.seam = replace(made.seam, stop_ids=())
    return made


def talk_of(session: Session, as_json: bool = False, quiet: bool = False) -> tuple[Talk, ChatCommands]:
    talk = Talk(Conversation(session), 12, Sampling(), as_json, quiet)
    return talk, ChatCommands(talk.conversation, Decoding(), talk.turns, quiet)


def break_at(monkeypatch: pytest.MonkeyPatch, token: int, error: BaseException) -> None:
    """Let the choice of an answer's token fail."""
    choose = Sampler.choose

    def broken(sampler: Sampler, logits: Any, number: int) -> int:
        if number == token:
            raise error
        return choose(sampler, logits, number)

    monkeypatch.setattr(Sampler, "choose", broken)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_that_fails_in_a_terminal_ends_its_line_and_not_the_chat(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: Output, as_json: bool, tmp_path: Path
) -> None:
    talk, commands = talk_of(session, as_json)
    with monkeypatch.context() as patched:
        break_at(patched, 8, DecodeError("no number"))
        assert _take("Who?", talk, commands, False)
        out, err = capsys.readouterr()
        assert err == "kvz: no number\n"
        assert out.endswith("\n")
        assert "error" in json.loads(out) if as_json else out.strip()
    assert talk.failed == 1
    [(question, said)] = talk.turns
    assert question == "Who?"
    assert said
    assert _take("Why?", talk, commands, False)
    assert _take(f"/save {tmp_path / 'talk.jsonl'}", talk, commands, False)
    assert len((tmp_path / "talk.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("error", [DecodeError("no number"), KeyboardInterrupt(), RuntimeError("out of memory")])
def test_from_a_pipe_a_failure_ends_the_line_and_the_chat(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: Output, error: BaseException
) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(False))
    talk, commands = talk_of(session)
    break_at(monkeypatch, 8, error)
    with pytest.raises(type(error)):
        _take("Who?", talk, commands, False)
    out, err = capsys.readouterr()
    assert out.strip()
    assert (out[-1], err) == ("\n", "")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("token", "note"), [(0, "question taken back"), (8, "answer stopped")])
@pytest.mark.parametrize("quiet", [False, True])
def test_an_interrupted_turn_counts_as_far_as_it_was_said(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: Output, token: int, note: str, quiet: bool
) -> None:
    talk, commands = talk_of(session, quiet=quiet)
    with monkeypatch.context() as patched:
        break_at(patched, token, KeyboardInterrupt())
        assert _take("Who?", talk, commands, quiet)
    out, err = capsys.readouterr()
    assert err == ("" if quiet else f"kvz: {note}\n")
    assert bool(out) == bool(token)
    assert len(talk.turns) == talk.conversation.turns == (token > 0)
    assert (talk.conversation.history > 0) == (token > 0)
    if not token:
        _take("Where?", talk, commands, quiet)
        assert talk.turns == [("Where?", session.ask("Where?", 12).text)]


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_stops_a_command_and_the_reading_stays(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    talk, commands = talk_of(session)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Session, "read", interrupted)
        assert _take("/budget 16", talk, commands, False)
        assert capsys.readouterr().err == "kvz: stopped\n"
        patched.setattr("sys.stdin", Stdin(False))
        with pytest.raises(KeyboardInterrupt):
            _take("/budget 16", talk, commands, False)
        patched.setattr("sys.stdin", Stdin(True))
        patched.setattr("kvz.cli.talk.is_final", lambda: True)
        with pytest.raises(KeyboardInterrupt):
            _take("/budget 16", talk, commands, False)
    assert talk.conversation.policy == "dense"
    assert not _take("/quit", talk, commands, False)


@pytest.mark.usefixtures("terminal")
def test_what_a_chat_in_a_terminal_does_not_outlive() -> None:
    assert outlives(DecodeError("no number"))
    for error in (OutputError("closed"), RuntimeError("no memory"), SystemExit(1), BrokenPipeError()):
        assert not outlives(error)


def test_quiet_commands_say_what_was_asked_for_and_errors(session: Session, capsys: Output, tmp_path: Path) -> None:
    _, commands = talk_of(session, quiet=True)
    lines = [
        "/reset",
        "/budget 16",
        "/budget 5000",
        "/budget off",
        f"/save {tmp_path / 'a'}",
        f"/save! {tmp_path / 'a'}",
    ]
    for line in lines:
        assert commands.run(line)
    assert capsys.readouterr() == ("", "")
    assert commands.failed == 0
    for line, words in (("/stats", "0 turns"), ("/help", "/save!"), ("/nonsense", "no command")):
        commands.run(line)
        assert words in capsys.readouterr().err


def test_a_budget_that_covers_everything_is_said(session: Session, capsys: Output) -> None:
    _, commands = talk_of(session)
    for line, words in (
        ("/budget 5000", "covers every head"),
        ("/budget 16", "by lowbit"),
        ("/budget off", "by dense"),
    ):
        commands.run(line)
        assert words in capsys.readouterr().err
    said = [say_covered(budget, policy, console.note) for budget, policy in ((64, "lowbit"), (None, "dense"))]
    assert (said, capsys.readouterr().err) == ([False, False], "")


def test_a_saved_conversation_is_replaced_only_when_that_is_asked_for(
    session: Session, capsys: Output, tmp_path: Path
) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text("old")
    talk, commands = talk_of(session)
    talk.turns.append(("Who?", "Mara."))
    commands.run(f"/save {path}")
    assert f"/save! {path}" in capsys.readouterr().err
    assert path.read_text() == "old"
    commands.run(f"/save! {path}")
    assert json.loads(path.read_text()) == {"question": "Who?", "answer": "Mara."}
    assert commands.failed == 1
    commands.run(f"/save! {tmp_path}")
    commands.run("/save!")
    assert commands.failed == 3


@pytest.mark.usefixtures("terminal")
def test_a_signal_whose_exception_was_lost_stops_the_answer(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """As when it comes inside a destructor, where Python prints it and goes on."""
    handler, choose = InterruptHandler(), Sampler.choose

    def interrupted(sampler: Sampler, logits: Any, number: int) -> int:
        if number == 4:
            with suppress(KeyboardInterrupt):
                handler(signal.SIGINT, None)
        return choose(sampler, logits, number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        talk, _ = talk_of(session)
        with monkeypatch.context() as patched:
            patched.setattr(Sampler, "choose", interrupted)
            talk.turn("Where is the key?")
        assert "answer stopped" in capsys.readouterr().err
        assert talk.conversation.turns == 1
        talk.turn("Why?")
        assert "answer stopped" not in capsys.readouterr().err
    finally:
        signal.signal(signal.SIGTERM, before)
