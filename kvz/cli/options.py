"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

__all__ = ["ArchivePath", "DeviceOption", "JsonOption", "ModelOption", "QuietOption"]

ArchivePath = Annotated[str, typer.Argument(metavar="ARCHIVE", help="A .kvz file.", show_default=False)]
ModelOption = Annotated[
    Optional[str],  # noqa: UP045 - evaluated by typer
    typer.Option("--model", "-m", metavar="MODEL", help="Hub id (org/name), folder or .gguf file.", show_default=False),
]
DeviceOption = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]
