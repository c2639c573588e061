"""The `kvz` command: its subcommands, and what becomes of errors and signals.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted (Ctrl-C or SIGTERM). One line on stderr says what is
wrong; `--debug`, anywhere before `--`, shows the traceback as well.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from kvz.cli.ask import ask
from kvz.cli.bench import bench
from kvz.cli.calibrate import calibrate
from kvz.cli.chat import chat
from kvz.cli.compress import compress
from kvz.cli.console import emit, note
from kvz.cli.inspect import inspect
from kvz.cli.models import models
from kvz.cli.signals import InterruptHandler
from kvz.cli.verify import verify
from kvz.errors import KvzError
from kvz.version import __version__
from kvz.wording import printable

__all__ = ["main", "make_app", "run"]

_INTERRUPTED = 130
_OUT_OF_MEMORY = re.compile("OutOfMemoryError|can't allocate memory")  # torch's own, on a GPU and on a CPU
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # typer does not export the class that its usage errors share


def make_app() -> typer.Typer:
    """The command line as a typer application."""
    app = typer.Typer(
        name="kvz",
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for command in (compress, ask, chat, inspect, verify, bench, calibrate, models):
        app.command()(command)
    return app


def main() -> NoReturn:
    """Entry point of the `kvz` script."""
    _let_threads_yield()
    interrupt = InterruptHandler()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    status = run(sys.argv[1:], lambda: bool(interrupt.received))
    if status == _INTERRUPTED:
        os._exit(status)  # left to itself, Python may end by killing itself with the signal
    sys.exit(status)


def _let_threads_yield() -> None:
    """Shorten the time that OpenMP's threads spin at a barrier, unless the user has set it; before torch is loaded.

    By default they spin so long that one other busy process makes every step tens of times slower.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "10000"


def run(arguments: list[str], interrupted: Callable[[], bool] = lambda: False) -> int:
    """Run one command line and return its exit status.

    `interrupted` says whether a signal has come: a library may swallow its exception and fail with another one later.
    """
    arguments, debug = _take_debug(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still shows the others
    try:
        result = make_app()(args=arguments, prog_name="kvz", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:
        if debug:
            traceback.print_exc()
        return _explain(KeyboardInterrupt() if interrupted() else error)
    status = result if isinstance(result, int) else 0
    if status == _INTERRUPTED:  # what newer releases of typer make of Ctrl-C
        _say("interrupted")
    return status


def _show_version(value: bool) -> None:
    if value:
        emit(f"kvz {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand after a command too.")] = False,
) -> None:
    """Compress a document's KV cache once, answer any number of questions from the archive later."""
    if context.invoked_subcommand is None:
        note(context.get_help())
        raise typer.Exit(2)


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """`--debug` taken out of the arguments, wherever it stands before `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head = [a for a in arguments[:end] if a != "--debug"]
    return head + arguments[end:], len(head) < end


def _explain(error: BaseException) -> int:
    """Say in one line on stderr what an exception means, and return the exit status."""
    if _was_interrupted(error) or (isinstance(error, SystemExit) and error.code == _INTERRUPTED):
        _say("interrupted")
        return _INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return 1
    if isinstance(error, KvzError):
        _say(str(error))
        return error.exit_status
    if isinstance(error, _USAGE_ERROR):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "kvz"
        _say(f"{error.format_message()} (see {command} --help)")
        return 2
    if isinstance(error, OSError):
        _silence_stdout()
        _say(f"cannot use {error.filename or 'standard output'}: {error.strerror or error}")
        return 1
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"):
        _say("out of memory; give a shorter document, a smaller model, or another --device")
        return 1
    _say(f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]} (--debug shows where)")
    return 1


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether a signal is behind an error; libraries turn one that cuts an import short into errors of their own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (KeyboardInterrupt, typer.Abort)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _say(message: str) -> None:
    try:
        sys.stderr.write(f"kvz: {printable(' '.join(message.split()))}\n")
        sys.stderr.flush()
    except (OSError, AttributeError):  # nowhere to say it
        pass


def _silence_stdout() -> None:
    """Let the interpreter's own last flush of a closed stdout go nowhere."""
    if sys.stdout is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


if __name__ == "__main__":
    main()
