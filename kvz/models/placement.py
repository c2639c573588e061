"""Names of devices and dtypes, checked without torch."""

from __future__ import annotations

import re

from kvz.errors import UsageError

__all__ = ["check_placement"]

_DEVICE = re.compile("auto|(cpu|cuda|xpu|mps|hpu|mtia|npu|xla|privateuseone)(:[0-9]{1,4})?")
_DTYPES = ("bfloat16", "float16", "float32")


def check_placement(device: str, dtype: str = "auto", offload: bool = False) -> None:
    """Raise UsageError for a device or dtype that there is none of, and for `offload` from a CPU.

    Whether the machine has the device is for torch to say.
    """
    if not _DEVICE.fullmatch(device):
        raise UsageError(f"device '{device}' cannot be used: give auto, cpu, cuda, cuda:1, ...")
    if dtype not in ("auto", *_DTYPES):
        raise UsageError(f"no dtype '{dtype}': give auto, {', '.join(_DTYPES)}")
    if offload and device.startswith("cpu"):
        raise UsageError("--offload moves the cache of a GPU to main memory; the model is on the cpu: leave it out")
