"""The commands of a chat: lines that begin with /."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvz import wording
from kvz.cli import console
from kvz.cli.answers import say_covered
from kvz.errors import KvzError, UsageError

if TYPE_CHECKING:
    from kvz.config import Decoding
    from kvz.decode.conversation import Conversation

__all__ = ["ChatCommands"]


class ChatCommands:
    """Runs the commands of one chat; `turns` are the questions and answers that /save writes.

    `quiet`, only what is asked for, and errors, is said.
    """

    def __init__(
        self, conversation: Conversation, decoding: Decoding, turns: list[tuple[str, str]], quiet: bool
    ) -> None:
        self.failed = 0
        self._conversation = conversation
        self._decoding = decoding
        self._turns = turns
        self._quiet = quiet
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "/reset": (self._reset, "forget the turns so far"),
            "/stats": (self._stats, "what the conversation takes"),
            "/budget": (self._budget, "N: read N pairs of each head for a token of an answer; off: all"),
            "/save": (self._save, "FILE: write the turns as JSON lines, which kvz ask --turns takes"),
            "/save!": (self._replace, "FILE: the same, in the place of a file that is there"),
            "/help": (self._help, "this list"),
            "/quit": (lambda rest: None, "end"),
        }

    def run(self, line: str) -> bool:
        """Run one command and say what came of it; False if it ends the chat."""
        name, _, rest = line.strip().partition(" ")
        if name == "/quit":
            return False
        try:
            if name not in self._commands:
                raise UsageError(f"no command {name}; /help lists them (to ask such a line, begin with a space)")
            self._commands[name][0](rest.strip())
        except KvzError as error:
            self.failed += 1
            console.note(f"kvz: {error}")
        return True

    def _reset(self, rest: str) -> None:
        self._conversation.reset()
        self._turns.clear()
        self._say("forgotten; the archive is as it was, and is read as before")

    def _stats(self, rest: str) -> None:
        talk = self._conversation
        console.note(
            f"{_turns(talk.turns)}, {wording.quantity(talk.history)} tokens; "
            f"{wording.quantity(talk.positions_left)} of the model's positions left; "
            f"{wording.size(talk.kv_bytes)} of KV; {talk.policy}"
        )

    def _budget(self, rest: str) -> None:
        from kvz.config import DENSE, Decoding

        if rest != "off" and not (rest.isascii() and rest.isdigit() and len(rest) < 10):
            raise UsageError("give a number of pairs, or off: /budget 256")
        start = Decoding() if self._decoding.policy == DENSE else self._decoding
        wanted = Decoding() if rest == "off" else replace(start, budget=int(rest))
        self._conversation.read(wanted)
        if not say_covered(wanted.budget, self._conversation.policy, self._say):
            pairs = "" if wanted.budget is None else f", {wanted.budget} pairs of each head for a token"
            self._say(f"the archive is read by {self._conversation.policy}{pairs}")

    def _save(self, rest: str) -> None:
        self._write(rest, overwrite=False)

    def _replace(self, rest: str) -> None:
        self._write(rest, overwrite=True)

    def _write(self, rest: str, overwrite: bool) -> None:
        from kvz.format.atomic import atomic_file

        if not rest:
            raise UsageError("give a file: /save talk.jsonl")
        path = _file(rest, overwrite)
        with atomic_file(path, overwrite) as file:
            for question, answer in self._turns:
                line = json.dumps({"question": question, "answer": answer}, ensure_ascii=False)
                file.write(line.encode("utf-8", "backslashreplace") + b"\n")
        self._say(f"{_turns(len(self._turns))} written to {path}")

    def _help(self, rest: str) -> None:
        for name, (_, meaning) in self._commands.items():
            console.note(f"  {name:<8} {meaning}")

    def _say(self, message: str) -> None:
        """What came of a command."""
        if not self._quiet:
            console.note(message)


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _file(name: str, overwrite: bool) -> Path:
    """A file to write; raises UsageError for one that is there, unless it may be, and for names that no file has."""
    try:
        path = Path(name).expanduser()
        os.lstat(path)
    except FileNotFoundError:
        return path
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"no file can be named '{name[:60]}': {error}") from None
    if not overwrite:
        raise UsageError(f"{path} exists; save under another name, or replace it: /save! {name}")
    return path
