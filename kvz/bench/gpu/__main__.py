"""The command behind `scripts/gpu-check`: sections that print as they end, a table last, and the numbers as JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kvz.bench.gpu.decode import decode_rows
from kvz.bench.gpu.kernel_times import kernel_rows
from kvz.bench.gpu.loading import loading_rows
from kvz.bench.gpu.models import GEOMETRIES, TINY
from kvz.bench.gpu.parity import parity_rows
from kvz.bench.gpu.timing import copy_ceiling

__all__ = ["main"]

Rows = Iterator[dict[str, Any]]
Section = Callable[["argparse.Namespace", torch.device], Rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections; 1 if a kernel is not what its plain form says, or a section failed."""
    options = _parser().parse_args(arguments)
    device = torch.device(options.device)
    began = time.monotonic()
    result: dict[str, Any] = {"machine": _machine(device), "sections": {}}
    failed = False
    for name in options.sections.split(","):
        if time.monotonic() - began > 60 * options.minutes:
            _say(f"{name}: left out, {options.minutes:g} minutes are over")
            continue
        rows: list[dict[str, Any]] = []
        result["sections"][name] = rows
        try:
            for row in SECTIONS[name](options, device):
                rows.append(row)
                _say(_line(name, row))
                failed |= row.get("passed") is False or row.get("no_synchronisation") is False
                _write(options.json, result)
        except Exception as error:  # one section must not take the others' results along
            failed = True
            result.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"
            _say(f"{name}: {type(error).__name__}: {error}")
        _say(f"-- {name} ended after {time.monotonic() - began:.0f} s")
        _write(options.json, result)
    for line in _table(result["sections"]):
        _say(line)
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument(
        "--sections", default=",".join(list(SECTIONS)[:-1]), help="which, in order (default %(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=8, help="start no section after so long (default 8)")
    parser.add_argument("--tokens", default="16384,32768,65536,98304", help="context lengths (default %(default)s)")
    parser.add_argument("--questions", type=int, default=32, help="questions in a batch (default 32)")
    parser.add_argument("--model", default="llama-3.1-8b", choices=[*GEOMETRIES, "tiny"], help="geometry for decode")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see whether all of this runs")
    parser.add_argument("--json", type=Path, default=None, help="write the numbers to this file after every row")
    return parser


def _parity(options: argparse.Namespace, device: torch.device) -> Rows:
    return parity_rows(device, (torch.bfloat16, torch.float16) if device.type == "cuda" else (torch.bfloat16,))


def _sanitizer(options: argparse.Namespace, device: torch.device) -> Rows:
    """Some rows of the parity section once more under compute-sanitizer, where there is one."""
    tool = shutil.which("compute-sanitizer")
    if tool is None or device.type != "cuda":
        yield {"sanitizer": "not found"}
        return
    command = [tool, "--error-exitcode", "9", sys.executable, "-m", "kvz.bench.gpu", "--sections", "smallest"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    yield {"sanitizer": tool, "passed": run.returncode == 0, "output": run.stdout[-2000:]}


def _smallest(options: argparse.Namespace, device: torch.device) -> Rows:
    """Every kernel in two shapes: what compute-sanitizer, which is slow, has time for."""
    yield from parity_rows(device, (torch.bfloat16,), ((64, 4), (80, 7)))


def _kernels(options: argparse.Namespace, device: torch.device) -> Rows:
    ceiling = copy_ceiling(device)
    yield {"kernel": "copy", "bytes_a_second": ceiling}
    for geometry in GEOMETRIES.values() if device.type == "cuda" else [TINY]:
        tokens = max(int(n) for n in options.tokens.split(","))
        yield from kernel_rows(geometry, tokens, options.questions, ceiling, torch.bfloat16, device)


def _decode(options: argparse.Namespace, device: torch.device) -> Rows:
    geometry = TINY if options.model == "tiny" else GEOMETRIES[options.model]
    lengths = [int(n) for n in options.tokens.split(",")]
    yield from decode_rows(geometry, lengths, options.questions, torch.bfloat16, device)


def _loading(options: argparse.Namespace, device: torch.device) -> Rows:
    geometry = TINY if options.model == "tiny" else GEOMETRIES[options.model]
    yield from loading_rows(geometry, max(int(n) for n in options.tokens.split(",")), torch.bfloat16, device)


SECTIONS: dict[str, Section] = {
    "parity": _parity, "decode": _decode, "kernels": _kernels, "loading": _loading, "sanitizer": _sanitizer,
    "smallest": _smallest,
}  # fmt: skip
"""In the order in which they run: what must be right, then what matters most; the last is for the sanitizer."""


def _machine(device: torch.device) -> dict[str, Any]:
    import transformers
    import triton

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "triton": triton.__version__, "transformers": transformers.__version__}
    return {"device": name, "python": sys.version.split()[0], **versions}


def _line(section: str, row: dict[str, Any]) -> str:
    return f"{section}: " + ", ".join(f"{name} {_short(value)}" for name, value in row.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(sections: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What matters of each section, a line each."""
    checked = [row for row in sections.get("parity", []) if "passed" in row]
    lines = [f"parity: {sum(row['passed'] for row in checked)} of {len(checked)} passed"] if checked else []
    for row in sections.get("decode", []):
        if "ms" in row:
            ratio = f"{row['times_full']:6.2f}x" if "times_full" in row else ""
            lines.append(f"{row['tokens']:>7} {row['way']:<24}{row['batch']:>4} {row['ms']:9.2f} ms a step {ratio}")
    for row in sections.get("kernels", []):
        if "of_copy" in row:
            lines.append(
                f"{row['model']:<14}{row['kernel']:<36}{row['ms']:9.4f} ms {100 * row['of_copy']:6.1f} % of copy"
            )
    return lines


def _say(line: str) -> None:
    print(line, flush=True)


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
