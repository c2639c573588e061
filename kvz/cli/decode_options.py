"""Options of the commands that make answers."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

__all__ = [
    "BudgetOption",
    "MaxNewTokensOption",
    "MmapOption",
    "NoVerifyOption",
    "PageSizeOption",
    "PolicyOption",
    "SeedOption",
    "TemperatureOption",
    "TopKOption",
    "TopPOption",
]

# Optional[...] is evaluated by typer.
MaxNewTokensOption = Annotated[int, typer.Option(metavar="N", help="Longest answer, in tokens.")]
TemperatureOption = Annotated[float, typer.Option(help="0 is greedy; above it, answers are sampled.")]
TopPOption = Annotated[Optional[float], typer.Option(help="Sample from this share of probability.")]  # noqa: UP045
TopKOption = Annotated[Optional[int], typer.Option(help="Sample from the K likeliest tokens.")]  # noqa: UP045
SeedOption = Annotated[Optional[int], typer.Option(help="Makes sampling repeatable.")]  # noqa: UP045
PolicyOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How the answer's tokens read the archive: dense, lowbit, hsa, quest, sparq, exact-topk, rocketkv-mt; "
        "auto is lowbit with a --budget, else dense.",
    ),
]
BudgetOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        metavar="N", help="Pairs of each head that a token of the answer may read, 16 or more; all of them without."
    ),
]
PageSizeOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="N", help="hsa: tokens a page; auto is what the archive has stored, or 4."),
]
NoVerifyOption = Annotated[bool, typer.Option("--no-verify", help="Do not check the tensors' checksums.")]
MmapOption = Annotated[
    Optional[bool],  # noqa: UP045
    typer.Option(
        "--mmap/--no-mmap",
        help="Map the archive's file, or read it into memory, where no change of the file and no failing disk reaches "
        "it; without either, it is mapped unless it lies on a network file system.",
    ),
]
