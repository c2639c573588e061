"""What a run was made on: machine, versions, and the commit of a checkout."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import Any

import torch

from kvz.bench.machine import best_rate, describe_machine, read_bandwidth
from kvz.models.language_model import LanguageModel
from kvz.version import __version__

__all__ = ["describe_environment", "device_bandwidth"]

_PROBE = 1 << 28  # bytes
_SECONDS = 2.0  # that are spent on reading them


def describe_environment(model: LanguageModel, bandwidth: float) -> dict[str, Any]:
    """For environment.json; `bandwidth` in bytes a second."""
    device = model.device
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kvz": __version__,
        "commit": _commit(),
        "machine": describe_machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "read_bandwidth_gb_s": round(bandwidth / 1e9, 2),
        "weight_bytes": model.decoder.architecture.step_weights * model.dtype.itemsize,
    }


def device_bandwidth(device: torch.device) -> float:
    """Bytes a second at which the device reads its memory: the best that was seen in some seconds."""
    if device.type != "cuda":
        return read_bandwidth(_PROBE, _SECONDS)
    data = torch.ones(1 << 28, device=device)

    def read() -> None:
        data.sum()
        torch.cuda.synchronize(device)

    torch.cuda.synchronize(device)
    return best_rate(read, data.nbytes, _SECONDS)


def _commit() -> str | None:
    """The commit of the checkout that kvz runs from, marked if files differ from it; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
