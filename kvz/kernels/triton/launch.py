"""How a kernel is compiled: one launch configuration, and what the compiler makes of it for a chip, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

__all__ = ["SHARED_BYTES", "Compiled", "Launch", "compile_launch", "pointer"]

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""Shared memory that one program may have, by chip: A100 and H100."""

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


@dataclass(frozen=True)
class Launch:
    """One specialisation of a kernel: types of its arguments, values of its constants, warps and stages.

    `arguments` maps a runtime argument to its Triton type (`*bf16`, `i32`, `fp32`); `aligned` names those that are
    multiples of 16 (pointers: of 16 bytes) whenever the kernel is launched, which wide loads need. `products` and
    `wide` say what the launch is held to: products by tensor cores, and loads of 128 bits.
    """

    name: str
    kernel: Any
    arguments: Mapping[str, str]
    constants: Mapping[str, Any]
    warps: int
    stages: int
    aligned: frozenset[str] = field(default_factory=frozenset)
    products: bool = True
    wide: bool = True


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a launch: registers a thread, bytes of shared memory and of spills, instructions.

    `wide` are the bits of the widest load from global memory; `tensor_cores` whether products are done by them.
    """

    registers: int
    shared: int
    spilled: int
    wide: int
    tensor_cores: bool


def pointer(dtype: torch.dtype) -> str:
    """Triton's type of a pointer to values of a dtype."""
    return _POINTERS[dtype]


def compile_launch(launch: Launch, chip: int) -> Compiled:
    """Compile for compute capability `chip` (80 or 90). Raises Triton's CompilationError where it does not compile."""
    names = launch.kernel.arg_names
    signature = {name: launch.arguments.get(name, "constexpr") for name in names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in launch.aligned}
    source = ASTSource(launch.kernel, signature, dict(launch.constants), attributes)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    built = compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    registers, spilled = _usage(built.asm["cubin"])
    code = built.asm["ptx"]
    return Compiled(
        registers,
        built.metadata.shared,
        spilled,
        _widest_load(code),
        any(word in code for word in ("mma.sync", "wgmma.mma_async")),
    )


def _usage(binary: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of stack and local memory, which is where spilled registers go."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        report = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(count) for name, count in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}
    return found["REG"], found["STACK"] + found["LOCAL"]


def _widest_load(code: str) -> int:
    """Bits of the widest load: `ld.global...v4.b32` is 128, `cp.async... 16` as well."""
    widest = 0
    for count, bits in re.findall(r"ld\.global\S*?(?:\.v(\d))?\.b(\d+)", code):
        widest = max(widest, int(count or 1) * int(bits))
    for size in re.findall(r"cp\.async\.\S+\s+\[[^]]*\],\s*\[[^]]*\],\s*(?:0x)?(\w+)", code):
        widest = max(widest, 8 * int(size, 16))
    return widest
