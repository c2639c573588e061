"""What Ctrl-C and SIGTERM become: KeyboardInterrupt, with a note of which signal it was."""

from __future__ import annotations

import signal
from typing import NoReturn

__all__ = ["InterruptHandler", "is_final", "raise_lost"]


class InterruptHandler:
    """A signal handler; `received` has the numbers of the signals that nothing has dealt with yet."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def __call__(self, number: int, frame: object) -> NoReturn:
        self.received.append(number)
        raise KeyboardInterrupt


def is_final() -> bool:
    """Whether an interrupt was meant for the whole program: SIGTERM is, Ctrl-C may be for an answer only.

    Ctrl-C is then forgotten: later errors are not its doing. The handler is asked, since a library may put an exception
    of its own in the place of the handler's.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if not isinstance(handler, InterruptHandler):
        return False
    if signal.SIGTERM in handler.received:
        return True
    handler.received.clear()
    return False


def raise_lost() -> None:
    """Raise the KeyboardInterrupt of a signal that nothing has dealt with yet.

    One that comes while Python runs a destructor or a callback of a library is printed there, and goes no further.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, InterruptHandler) and handler.received:
        raise KeyboardInterrupt
