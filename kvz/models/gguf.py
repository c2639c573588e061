"""GGUF files: dequantised once to bfloat16 safetensors in the cache folder, loaded from there ever after.

Loading the safetensors takes 1-2 seconds where the GGUF file takes 15.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import xxhash

from kvz.errors import ModelError
from kvz.models.cache_folder import build_once, cache_folder
from kvz.models.quiet import first_line, quiet_transformers

__all__ = ["convert_gguf", "converted_folder"]


def converted_folder(gguf: Path) -> Path:
    """Folder holding `gguf` as safetensors, converting it if that has not been done. Keyed by the file's content."""
    digest = xxhash.xxh3_128()
    with gguf.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    folder = cache_folder() / "gguf" / f"{gguf.stem}-{digest.hexdigest()}"
    return build_once(folder, lambda partial: convert_gguf(gguf, partial))


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer in `gguf` to `folder` as bfloat16 safetensors.

    Raises ModelError if the file is not GGUF or of an architecture transformers cannot read.
    """
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{gguf} is not a GGUF file (it does not begin with 'GGUF')")
    import torch
    import transformers

    weights: dict[str, Any] = {"dtype": torch.bfloat16}
    if hasattr(transformers, "GgufConfig"):  # newer releases keep the weights packed unless told otherwise
        weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    where = {"gguf_file": gguf.name, "trust_remote_code": False}
    with quiet_transformers(), redirect_stderr(io.StringIO()):  # a bar of its own, that no setting turns off
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), **where)
            model = transformers.AutoModelForCausalLM.from_pretrained(str(gguf.parent), **where, **weights)
        except Exception as error:
            raise ModelError(f"cannot convert {gguf}: {first_line(error)}") from error
        try:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except OSError:
            raise
        except Exception as error:  # how a full disk shows, as a plain Exception from one of them
            raise ModelError(f"cannot write the converted model to {folder}: {first_line(error)}") from error
