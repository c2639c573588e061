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

__all__ = ["describe_environment", "device_bandwidth", "step_weight_bytes", "weights_of"]

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
        "weight_bytes": step_weight_bytes(model),
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


def step_weight_bytes(model: LanguageModel) -> int:
    """Bytes of the weights that a step reads: all but the table of embeddings, of which it reads a row."""
    return weights_of(model.identity.config, model.geometry.query_heads) * model.dtype.itemsize


def weights_of(config: Any, query_heads: int) -> int:
    """How many weights the products of a step have, by a model's config: a dense decoder with a gated MLP."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    dim = getattr(config, "head_dim", None) or hidden // query_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or query_heads
    attention = hidden * dim * (2 * query_heads + 2 * kv_heads)
    return int(layers * (attention + 3 * hidden * config.intermediate_size) + hidden * config.vocab_size)


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
