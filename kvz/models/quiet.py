"""Keeping transformers' own bars, warnings and long errors off the terminal while it works for us."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["first_line", "quiet_transformers"]

_QUIET = threading.RLock()  # its settings are the process's: two threads would give each other's back


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and everything below an error; the user's settings come back afterwards.

    One thread at a time is in such a block.
    """
    from transformers.utils import logging

    with _QUIET:
        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """The first line of an error's message, which may go on for a page."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
