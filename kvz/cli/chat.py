"""kvz chat: a conversation about an archive, in a terminal or from a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import typer

from kvz import wording
from kvz.cache.index_plan import check_page_size
from kvz.cli import console
from kvz.cli.arguments import as_text
from kvz.cli.chat_commands import ChatCommands
from kvz.cli.decode_options import (
    BudgetOption,
    MaxNewTokensOption,
    MmapOption,
    NoVerifyOption,
    PageSizeOption,
    PolicyOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
)
from kvz.cli.lines import Readable, read_lines
from kvz.cli.open_session import OpenedArchive, open_session
from kvz.cli.options import ArchivePath, DeviceOption, JsonOption, ModelOption, QuietOption
from kvz.cli.signals import is_final
from kvz.cli.talk import Talk, outlives
from kvz.config import Decoding, Sampling, check_max_new_tokens
from kvz.defaults import MAX_NEW_TOKENS
from kvz.errors import UsageError

__all__ = ["chat"]

_PROMPT = "> "


def chat(
    archive: ArchivePath,
    model: ModelOption = None,
    max_new_tokens: MaxNewTokensOption = MAX_NEW_TOKENS,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    seed: SeedOption = None,
    policy: PolicyOption = "auto",
    budget: BudgetOption = None,
    page_size: PageSizeOption = None,
    device: DeviceOption = "auto",
    no_verify: NoVerifyOption = False,
    mmap: MmapOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Talk about an archive: each turn sees those before it. From a pipe, each line is a turn.

    Lines that begin with / are commands: /reset /stats /budget N /save FILE /quit. Ctrl-C stops an answer or a command.
    """
    if archive == "-":
        raise UsageError("an archive cannot come through a pipe; give a file")
    if sys.stdin is None:
        raise UsageError("standard input is closed; there is nothing to answer")
    decoding, sampling = Decoding(policy, budget, check_page_size(page_size)), Sampling(temperature, top_p, top_k, seed)
    check_max_new_tokens(max_new_tokens)
    opened = OpenedArchive.of_options(archive, not no_verify, mmap, model, device)
    from kvz.decode.conversation import Conversation

    session = open_session(opened, decoding, console.terminal_progress(quiet))
    talk = Talk(Conversation(session), max_new_tokens, sampling, as_json, quiet)
    commands = ChatCommands(talk.conversation, decoding, talk.turns, quiet)
    if sys.stdin.isatty() and not quiet:
        manifest = opened.file.manifest
        held = wording.quantity(manifest.prompt.context_tokens)
        console.note(f"{manifest.source.name}: {held} tokens. Ask, or /help; Ctrl-D or /quit ends.")
    for line in _lines(quiet):
        if not _take(line, talk, commands, quiet):
            break
    if talk.failed + commands.failed and not sys.stdin.isatty():
        raise typer.Exit(1)


def _take(line: str, talk: Talk, commands: ChatCommands, quiet: bool) -> bool:
    """Run a line as a command, or ask it; False if it ends the chat, which an interrupt in a terminal does not."""
    try:
        if line.startswith("/"):
            return commands.run(line)
        if line.strip():
            talk.turn(line.strip())
    except KeyboardInterrupt as error:
        if not outlives(error):
            raise
        if not quiet:
            console.note("kvz: stopped")
    return True


def _lines(quiet: bool) -> Iterator[str]:
    """What is typed, line by line, with editing where a terminal allows it; or what comes through a pipe."""
    if not sys.stdin.isatty():
        yield from _piped()
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() editing and a history
    while True:
        try:
            yield _typed()
        except EOFError:
            console.note("")
            return
        except KeyboardInterrupt:
            if is_final():
                raise
            console.note("" if quiet else "  (Ctrl-D or /quit ends)")


def _typed() -> str:
    """A line from the terminal. The prompt goes to stdout only where that is the terminal too."""
    if sys.stdout is not None and sys.stdout.isatty():
        return as_text(input(_PROMPT))
    if sys.stderr is not None:
        sys.stderr.write(_PROMPT)
        sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return as_text(line.rstrip("\n"))


def _piped() -> Iterator[str]:
    stream: Readable = sys.stdin.buffer  # type: ignore[assignment]
    for _, line in read_lines(stream, "standard input"):
        yield line
