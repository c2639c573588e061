"""Compiled steps give the plain ones' logits, are compiled once for all layers, and leave longer passes alone."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kvz.compression import compress
from kvz.errors import UsageError
from kvz.models.compiled_layers import check_compiles, compile_layers
from kvz.models.fused_norm import fuse_norms
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.tiny import FAMILIES, make_model_folder


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Graphs:
    """A backend that runs what it is given as it is, and counts it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        self.count += 1
        return graph


def logits(model: LanguageModel, question: str) -> Tensor:
    """Logits of the steps of an answer, one row a step."""
    rows: list[Tensor] = []
    head = model.network.get_output_embeddings()

    def see(module: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
        rows.append(out[0, -1].float())

    hook = head.register_forward_hook(see)
    try:
        compress(TEXT, model, ratio=0.6).ask(question, 10)
    finally:
        hook.remove()
    return torch.stack(rows[-8:])


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_are_compiled_once_for_all_layers_and_stay_what_they_were(tmp_path: Path, family: str) -> None:
    model = load_model(str(make_model_folder(tmp_path, family)), "cpu", "float32")
    wanted = logits(model, "Where is the key?")
    fuse_norms(model.network)
    graphs = Graphs()
    compile_layers(model.network, graphs)
    assert torch.allclose(logits(model, "Where is the key?"), wanted, atol=1e-5)
    first = graphs.count
    # norm; projections and rotary embedding; output projection; sum, norm and MLP. Gemma's norms have one graph more
    assert first == (5 if family == "gemma3" else 4)
    logits(model, "And who has it? Say it in one word.")  # another archive, another tail
    assert graphs.count == first
    session = compress(TEXT, model, ratio=0.6).session()
    for questions in (2, 3, 4):
        list(session.ask_all(["Where is the key?"] * questions, 5, size=questions))
    assert graphs.count <= 2 * first, "once more for batches, of whatever size"


def test_longer_passes_are_not_compiled(tiny_folder: Path) -> None:
    model = load_model(str(tiny_folder), "cpu", "float32")
    graphs = Graphs()
    compile_layers(model.network, graphs)
    archive = compress(TEXT, model, ratio=0.6)
    assert graphs.count == 0
    archive.ask("Where is the key?", 1)
    assert graphs.count == 0
    archive.ask("Where is the key?", 3)
    assert graphs.count > 0


def test_layers_are_compiled_once(tiny_folder: Path) -> None:
    network = load_model(str(tiny_folder), "cpu", "float32").network
    compile_layers(network, Graphs())
    before = [layer.forward for layer in network.base_model.layers]  # type: ignore[union-attr]
    compile_layers(network, Graphs())
    assert [layer.forward for layer in network.base_model.layers] == before  # type: ignore[union-attr]


def test_models_loaded_later_leave_compiled_ones_as_they_are(tmp_path: Path, tiny_folder: Path) -> None:
    model, graphs = load_model(str(tiny_folder), "cpu", "float32"), Graphs()
    wanted = logits(model, "Where is the key?")
    compile_layers(model.network, graphs)
    assert torch.allclose(logits(model, "Where is the key?"), wanted, atol=1e-5)
    first = graphs.count
    other = load_model(str(make_model_folder(tmp_path, "qwen3", seed=5)), "cpu", "float32")
    assert torch.allclose(logits(model, "Where is the key?"), wanted, atol=1e-5)
    assert graphs.count == first
    logits(other, "Where is the key?")
    assert graphs.count == first, "the other model is not compiled"


def test_a_compiled_model_is_freed_when_it_is_dropped(tiny_folder: Path) -> None:
    model = load_model(str(tiny_folder), "cpu", "float32")
    layer = weakref.ref(model.network.base_model.layers[0])  # type: ignore[index, union-attr]
    compile_layers(model.network, Graphs())
    gc.collect()
    gc.disable()
    try:
        del model
        assert layer() is None
    finally:
        gc.enable()


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs one for C++ on a CPU")
def test_what_the_compiler_makes_of_a_step_gives_the_same_logits(tiny_folder: Path) -> None:
    model = load_model(str(tiny_folder), "cpu", "float32")
    wanted = logits(model, "Where is the key?")
    compile_layers(model.network)
    assert torch.allclose(logits(model, "Where is the key?"), wanted, atol=1e-4)


def test_a_model_on_a_cpu_is_not_compiled(tiny_folder: Path) -> None:
    model = load_model(str(tiny_folder), "cpu", "float32")
    with pytest.raises(UsageError, match="leave --compile out"):
        model.compile_steps()
    with pytest.raises(UsageError, match="compiled for GPUs"):
        check_compiles(torch.device("cpu"))
