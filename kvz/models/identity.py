"""What a model is, without its weights: enough to tell whether an archive belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from kvz.errors import ModelError
from kvz.geometry import Geometry
from kvz.models.architecture import Architecture
from kvz.models.cache_geometry import geometry_of
from kvz.models.config_file import ModelConfig, read_config
from kvz.models.fingerprint import Fingerprints, fingerprints_of
from kvz.models.quiet import first_line
from kvz.models.source import ModelSource, find_model
from kvz.models.tokenizer import Tokenizer

__all__ = ["ModelIdentity", "identify_model"]


@dataclass(frozen=True, eq=False)
class ModelIdentity:
    """Where a model lies, its config, tokenizer, geometry, fingerprints, and what its forward pass is like."""

    source: ModelSource
    config: ModelConfig
    tokenizer: Tokenizer
    geometry: Geometry
    fingerprints: Fingerprints
    facts: Architecture

    @property
    def architecture(self) -> str:
        """Class name of the architecture, such as LlamaForCausalLM."""
        names = self.config.architectures
        return names[0] if names else self.config.model_type

    @property
    def vocabulary_size(self) -> int:
        """Ids the model can be fed: 0 to this, exclusive."""
        return self.config.vocab_size


def identify_model(name: str | Path | None, say: Callable[[str], None] = lambda message: None) -> ModelIdentity:
    """Find a model (see `find_model`) and read everything about it but its weights.

    Code that comes with a model is never run. Raises ModelError or UnsupportedModel.
    """
    source = find_model(name, say)
    config = read_config(source.folder)
    facts = Architecture.from_config(config)
    tokenizer = Tokenizer.load(source.folder)
    try:
        fingerprints = fingerprints_of(config, source.folder, tokenizer)
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"cannot load the weights in {source.folder}: {first_line(error)}; copy or fetch the model again"
        ) from error
    return ModelIdentity(source, config, tokenizer, geometry_of(config), fingerprints, facts)
