"""The options of scoring methods, as the command line has them; one given with a method that lacks it is an error."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

__all__ = [
    "ChunkOption",
    "HeadScoresOption",
    "InstructionOption",
    "KernelOption",
    "QueryOption",
    "SeedOption",
    "SinkOption",
    "TurnOption",
    "WeightOption",
    "WindowOption",
]

# Optional[...] is evaluated by typer.
ChunkOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(metavar="TOKENS", help="kvzip-rms, kvzip, kvzip+: tokens repeated at a time. [default: 2048]"),
]
InstructionOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="NAME", help="kvzip-rms, kvzip, kvzip+: how the model is told to: repeat (default), reproduce, copy."
    ),
]
WeightOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="NAME", help="kvzip: softmax (default) or logit."),
]
TurnOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(metavar="W", help="kvzip-rms: repeated tokens that the turn's mean row counts for. [default: 4096]"),
]
WindowOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        metavar="TOKENS",
        help="snapkv, adakv, rocketkv (32), pyramidkv (8): last tokens, which score the others; "
        "kvzip-head (64), duo (256): last tokens that streaming heads keep.",
    ),
]
KernelOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(metavar="N", help="snapkv, adakv, pyramidkv (7), rocketkv (63): positions max-pooled, odd."),
]
QueryOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="TEXT", help="snapkv, adakv, pyramidkv, rocketkv: a question known already, to end the window with."
    ),
]
SinkOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(metavar="TOKENS", help="recent, kvzip-head (4), duo (64): first tokens that are kept."),
]
HeadScoresOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="FILE", help="kvzip-head, duo: scores of heads, in place of those of kvz calibrate."),
]
SeedOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(metavar="N", help="random: which pairs. [default: 0]"),
]
