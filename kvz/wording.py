"""Text and numbers as readers see them."""

from __future__ import annotations

import re

__all__ = ["printable", "quantity", "seconds", "size"]

# C0 and C1 controls, line and paragraph separators, bidirectional overrides and isolates, and lone surrogates.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    """`text` with control characters spelled out, but for those in `keep`: no string may steer a terminal."""
    return "".join(c if c in keep or not _STEERING.match(c) else c.encode("unicode_escape").decode() for c in text)


def size(nbytes: float) -> str:
    """Bytes for a reader: 512 B, 13.0 MB, 1.2 GB (powers of 1000)."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"


def seconds(value: float) -> str:
    """Seconds for a reader: 0.04 s, 12.3 s."""
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def quantity(value: int, estimated: bool = False) -> str:
    """A count with thousands separated, or an estimate of one."""
    return f"about {value:,}" if estimated else f"{value:,}"
