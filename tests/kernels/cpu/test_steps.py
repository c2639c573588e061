"""The CPU's decode-step kernels against float64 formulas."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.errors import NumbaError
from torch import Tensor

from kvz.archive import Archive
from kvz.cache.bit_planes import plane_layer
from kvz.cache.ragged import RaggedLayer
from kvz.compression import compress
from kvz.config import Decoding
from kvz.kernels import decode_step
from kvz.kernels.cpu import compile as compiling
from kvz.kernels.cpu.chosen_step import ChosenStep
from kvz.kernels.cpu.plane_scores import PlaneScores
from kvz.kernels.cpu.plane_step import PlaneStep
from kvz.kernels.cpu.ragged_step import RaggedStep
from kvz.kernels.tails import Tails
from kvz.models.language_model import LanguageModel
from tests.conftest import TEXT
from tests.near import LOGITS, assert_near

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@dataclass(frozen=True)
class Step:
    """Random pairs, tails and queries; what lies around the pairs in use is NaN."""

    bounds: tuple[int, ...]
    keys: Tensor
    values: Tensor
    query: Tensor
    tails: Tails
    scale: float = 0.3

    @classmethod
    def make(
        cls, lengths: list[int], tails: list[int], group: int = 3, dim: int = 16, dtype: torch.dtype = torch.float32
    ) -> Step:
        torch.manual_seed(sum(lengths) + group)
        heads, most = len(lengths), max(tails) + 5
        bounds = [0]
        for length in lengths:
            bounds.append(bounds[-1] + length)
        keys, values = (torch.randn(bounds[-1], dim).to(dtype) for _ in range(2))
        own = torch.full((2, len(tails), heads, most, dim), float("nan"), dtype=dtype)
        for token, length in enumerate(tails):
            own[:, token, :, :length] = torch.randn(2, heads, length, dim).to(dtype)
        query = 3 * torch.randn(heads, len(tails), group, dim).to(dtype)
        seen = max(tails)
        return cls(tuple(bounds), keys, values, query, Tails(own[0][:, :, :seen], own[1][:, :, :seen], tuple(tails)))

    @property
    def terms(self) -> int:
        """How many products the longest row sums: a logit's, and the weighted values."""
        heads = max(last - first for first, last in zip(self.bounds[:-1], self.bounds[1:], strict=True))
        return self.keys.shape[1] + heads + max(self.tails.lengths)

    def expected(self, rows_of: dict[tuple[int, int], list[int]]) -> Tensor:
        """Attention in float64 of each token over the rows of its heads and its tail."""
        out = torch.zeros(self.query.shape, dtype=torch.float64)
        for head, (first, last) in enumerate(zip(self.bounds[:-1], self.bounds[1:], strict=True)):
            for token, length in enumerate(self.tails.lengths):
                rows = rows_of.get((head, token), list(range(first, last)))
                keys = torch.cat([self.keys[rows], self.tails.keys[token, head, :length]]).double()
                values = torch.cat([self.values[rows], self.tails.values[token, head, :length]]).double()
                if len(keys):
                    weights = torch.softmax(self.query[head, token].double() @ keys.t() * self.scale, -1)
                    out[head, token] = weights @ values
        return out


def _check(step: Step, out: Tensor, expected: Tensor, size: float = 1.0) -> None:
    assert out.dtype == torch.float32
    assert_near(out, expected, step.terms, size=size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("programs", [1, 2, 7])
def test_dense_step_over_ragged_heads(dtype: torch.dtype, programs: int) -> None:
    step = Step.make([1000, 0, 1, 63, 64, 65, 17], [40], dtype=dtype)
    made = RaggedStep.of(step.keys, step.values, step.bounds, programs)
    _check(step, made.attend(step.query, step.scale, step.tails), step.expected({}))


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("dim", [8, 64, 80])
def test_dense_step_of_several_tokens_with_tails_of_their_own(group: int, dim: int) -> None:
    step = Step.make([130, 5], [1, 64, 65, 7], group, dim)
    made = RaggedStep.of(step.keys, step.values, step.bounds, 2)
    _check(step, made.attend(step.query, step.scale, step.tails), step.expected({}))


@given(
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=6),
    tails=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    programs=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_ragged_shape(lengths: list[int], tails: list[int], programs: int) -> None:
    step = Step.make(lengths, tails)
    made = RaggedStep.of(step.keys, step.values, step.bounds, programs)
    _check(step, made.attend(step.query, step.scale, step.tails), step.expected({}))


@given(total=st.lists(st.integers(0, 500), min_size=1, max_size=12), programs=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_program_has_an_equal_share_and_every_pair_one_program(total: list[int], programs: int) -> None:
    bounds = [0]
    for length in total:
        bounds.append(bounds[-1] + length)
    made = RaggedStep.of(torch.zeros(bounds[-1], 4), torch.zeros(bounds[-1], 4), bounds, programs)
    rows = [row for _, first, last in made.segments for row in range(first, last)]
    assert rows == list(range(bounds[-1]))
    loads = [sum(b - a for _, a, b in made.segments[s:t]) for s, t in zip(made.shares, made.shares[1:], strict=False)]
    assert max(loads) - min(loads) <= 1
    for head, first, last in made.segments:
        assert bounds[head] <= first < last <= bounds[head + 1]


def test_scores_far_apart_and_huge() -> None:
    step = Step.make([300, 20], [3])
    step.keys[7] *= 400
    step.query.mul_(50)
    made = RaggedStep.of(step.keys, step.values, step.bounds, 2)
    _check(step, made.attend(step.query, step.scale, step.tails), step.expected({}), size=500)  # scores are that large


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 130])
def test_chosen_step(dtype: torch.dtype, prefix: int, count: int) -> None:
    step = Step.make([300, 200, 150], [9, 70], dtype=dtype)
    rows = torch.stack(
        [
            torch.stack([first + prefix + torch.randperm(150 - prefix)[:count] for _ in range(2)])
            for first in step.bounds[:-1]
        ]
    )
    valid = torch.rand(3, 2, count) < 0.8
    valid[1] = False
    rows_of = {
        (h, b): [*range(step.bounds[h], step.bounds[h] + prefix), *rows[h, b][valid[h, b]].tolist()]
        for h in range(3)
        for b in range(2)
    }
    made = ChosenStep.of(step.keys, step.values, step.bounds, prefix)
    _check(step, made.attend(step.query, rows, valid, step.scale, step.tails), step.expected(rows_of))


@pytest.mark.parametrize("group", [1, 3, 7])
@pytest.mark.parametrize("rows", [1, 5, 48, 96])
def test_plane_scores(group: int, rows: int) -> None:
    torch.manual_seed(rows)
    lengths, prefix, dim = [8, 1, 9, 333, 0, 40], 2, 32
    bounds = torch.tensor([0, *(n + prefix for n in lengths)]).cumsum(0)
    keys = torch.randn(int(bounds[-1]), dim)
    layer = RaggedLayer(keys, keys, bounds, torch.zeros(len(keys), dtype=torch.int32))
    index = plane_layer(layer, prefix)
    counts = [rows, rows, rows, rows, rows, 0]
    query = torch.randn(6, 2, group, dim)
    scores = PlaneScores.of(index, counts, lengths).score(query, 0.2)
    assert scores.shape == (6, 2, 333)
    for head, length in enumerate(lengths):
        assert bool(scores[head, :, length:].eq(float("-inf")).all())
        if not counts[head]:
            assert bool(scores[head, :, :length].eq(0).all())
            continue
        for token in range(2):
            weights = index.weights(query.double())[head, token]
            best = weights.abs().sum(0).topk(rows).indices
            bits = index.rows(head, best).double()[:, :length]
            expected = torch.softmax(weights[:, best] @ bits * 0.2, -1).mean(0)
            assert_near(scores[head, token, :length], expected, rows + group, floor=0, size=LOGITS)


@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
def test_a_kernel_runs_without_a_place_for_its_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def doubled(x: int) -> int:
        return 2 * x

    monkeypatch.setenv("KVZ_CACHE", str(tmp_path / "cache"))
    kernel = compiling.Kernel(doubled)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # a longer file cannot be written, as on a full disk
    try:
        assert [kernel(4), kernel(5)] == [8, 10]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not any(path.stat().st_size for path in tmp_path.rglob("*.nbc"))
    monkeypatch.setenv("KVZ_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    assert compiling.Kernel(doubled)(3) == 6


@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
@pytest.mark.parametrize("folder", ["~no-such-user/kvz", "{tmp}/file/kvz", "{tmp}/" + "x" * 300])
def test_a_kernel_runs_without_a_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    """There is no home, or it is out of reach."""

    def sevenfold(x: int) -> int:
        return 7 * x

    def failing(x: int) -> int:
        if x > 0:
            raise ValueError("more than none")
        return x

    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("KVZ_CACHE", folder.format(tmp=tmp_path))
    assert decode_step.is_to_be_compiled(torch.device("cpu"), "dense", torch.float32, 3)
    assert compiling.Kernel(sevenfold)(3) == 21
    with pytest.raises(ValueError, match="more than none"):  # not an error of the folder
        compiling.Kernel(failing)(3)


@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
def test_kept_machine_code_that_is_spoilt_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def tripled(x: int) -> int:
        return 3 * x

    monkeypatch.setenv("KVZ_CACHE", str(tmp_path))
    assert compiling.Kernel(tripled)(3) == 9
    kept = [path for path in tmp_path.rglob("*.nb?") if path.is_file()]
    assert {path.suffix for path in kept} == {".nbi", ".nbc"}
    for path in kept:
        path.write_bytes(path.read_bytes()[:20])
    assert compiling.Kernel(tripled)(5) == 15


@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
def test_a_kernel_that_fails_leaves_the_code_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fourfold(x: int) -> int:
        return 4 * x

    def untyped(x: int) -> int:
        return x.no_such_thing  # type: ignore[attr-defined,no-any-return]

    def fourfold_and_more(x: int) -> int:
        return 4 * x + 1

    def code() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}

    monkeypatch.setenv("KVZ_CACHE", str(tmp_path))
    assert compiling.Kernel(fourfold)(3) == 12
    kept = code()
    with pytest.raises(NumbaError):
        compiling.Kernel(untyped)(3)
    assert compiling.Kernel(fourfold_and_more)(3) == 13
    for path in code().keys() - kept.keys():
        path.write_bytes(b"spoilt")
    assert compiling.Kernel(fourfold_and_more)(3) == 13
    assert kept.items() <= code().items()


@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
def test_code_of_other_versions_goes_after_a_while(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fivefold(x: int) -> int:
        return 5 * x

    monkeypatch.setenv("KVZ_CACHE", str(tmp_path))
    for name, age in (("old", 100), ("recent", 10)):
        folder = tmp_path / "kernels" / name
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age * 86400,) * 2)
    assert compiling.Kernel(fivefold)(3) == 15
    assert not (tmp_path / "kernels" / "old").exists()
    assert (tmp_path / "kernels" / "recent").exists()


def test_queries_that_are_no_numbers_touch_nothing_they_must_not() -> None:
    step = Step.make([300, 200], [3])
    layer = RaggedLayer(step.keys, step.values, torch.tensor(step.bounds), torch.zeros(1, dtype=torch.int32))
    index = PlaneScores.of(plane_layer(layer, 0), [20, 20], [300, 200])
    step.query.fill_(float("nan"))
    made = PlaneStep.of(ChosenStep.of(step.keys, step.values, step.bounds, 0), index, [40, 40])
    assert made.attend(step.query, step.scale, step.tails).shape == step.query.shape  # what it holds means nothing


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("takes", [[1, 5, 64, 0], [40, 33, 130, 0]])
def test_plane_step_attends_the_best_by_their_scores(dtype: torch.dtype, prefix: int, takes: list[int]) -> None:
    step = Step.make([300 + prefix, 33 + prefix, 150 + prefix, prefix], [9, 70], dtype=dtype)
    layer = RaggedLayer(step.keys, step.values, torch.tensor(step.bounds), torch.zeros(1, dtype=torch.int32))
    lengths, rows = [300, 33, 150, 0], [12, 0, 20, 0]
    index = PlaneScores.of(plane_layer(layer, prefix), rows, lengths)
    scores = index.score(step.query, step.scale)
    rows_of = {}
    for head, take in enumerate(takes):
        first = step.bounds[head]
        for token in range(2):
            best = scores[head, token, : lengths[head]].topk(min(take, lengths[head])).indices + first + prefix
            rows_of[head, token] = [*range(first, first + prefix), *best.tolist()]
    made = PlaneStep.of(ChosenStep.of(step.keys, step.values, step.bounds, prefix), index, takes)
    out = made.attend(step.query, step.scale, step.tails)
    tied = takes[1] < 33  # its scores are all the same, and which of equal ones are taken is not said
    kept = [h for h in range(4) if h != 1 or not tied]
    _check(step, out[kept], step.expected(rows_of)[kept])


DECODINGS = [Decoding("dense"), Decoding("lowbit", 48), Decoding("hsa", 48)]


def answers_of(archive: Archive, model: LanguageModel) -> list[list[tuple[int, ...]]]:
    """Answers by every policy."""
    questions = ["Where is the key?", "Who?", "When does the office open, and what colour is the ledger?"]
    sessions = [archive.session(model, decoding) for decoding in DECODINGS]
    return [[session.ask(question, 25).ids for question in questions] for session in sessions]


def test_answers_are_those_of_plain_torch(tiny: LanguageModel, tiny_folder: Path, tmp_path: Path) -> None:
    """As a process has it in which numba compiles nothing."""
    archive = compress(TEXT * 2, tiny, ratio=0.5)
    archive.save(tmp_path / "a.kvz")
    script = """if True:
        import sys, torch, kvz
        from kvz.kernels.decode_step import compiles
        from tests.kernels.cpu.test_steps import answers_of
        assert not compiles(torch.zeros(1))
        print(answers_of(kvz.load(sys.argv[1]), kvz.load_model(sys.argv[2], "cpu", "float32")))
    """
    command = [sys.executable, "-c", script, str(tmp_path / "a.kvz"), str(tiny_folder)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    assert ast.literal_eval(done.stdout) == answers_of(archive, tiny)


def test_a_kernel_leaves_the_number_of_threads_as_it_is() -> None:
    step = Step.make([300, 200], [3])
    made = RaggedStep.of(step.keys, step.values, step.bounds, 1)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            made.attend(step.query, step.scale, step.tails)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_kernel_leaves_the_settings_of_the_process_as_they_are(tmp_path: Path) -> None:
    """Of threads: torch's, in this thread and in later ones, and numba's; and of numba where code is kept."""
    script = """if True:
        import threading, types, numba, torch
        from kvz.kernels.cpu.compile import Kernel

        class Watched(types.ModuleType):
            def __setattr__(self, name, value):
                raise AssertionError(f"{name} was set")

        def sixfold(x):
            return 6 * x

        def run():
            found.append(torch.get_num_threads())  # a thread keeps what it finds first
            begun.set()
            changed.wait()
            for _ in range(2):
                assert Kernel(sixfold)(7) == 42
                found.append(torch.get_num_threads())
                numba.set_num_threads(1)
            found.append(numba.get_num_threads())

        begun, changed, found = threading.Event(), threading.Event(), []
        torch.set_num_threads(2)
        numba.config.__class__ = Watched
        thread = threading.Thread(target=run)
        thread.start()
        begun.wait()
        torch.set_num_threads(1)
        changed.set()
        thread.join()
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert found == [2, 2, 2, 1, 1], found
    """
    environment = {**os.environ, "KVZ_CACHE": str(tmp_path), "NUMBA_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=environment)
    assert any(tmp_path.rglob("*.nbi"))


def run_steps() -> None:
    """The kernels of a step, over float32 pairs, that do not take long to compile."""
    step = Step.make([30, 20], [3])
    RaggedStep.of(step.keys, step.values, step.bounds, 1).attend(step.query, step.scale, step.tails)
    chosen = ChosenStep.of(step.keys, step.values, step.bounds, 0)
    rows, valid = torch.zeros(2, 1, 4, dtype=torch.int64), torch.ones(2, 1, 4, dtype=torch.bool)
    chosen.attend(step.query, rows, valid, step.scale, step.tails)


def test_it_is_known_whether_a_kernel_has_to_be_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setenv("KVZ_CACHE", str(tmp_path))

    def to_be_compiled(policy: str, dtype: torch.dtype = torch.float32, group: int = 3) -> bool:
        return decode_step.is_to_be_compiled(cpu, policy, dtype, group)

    assert all(to_be_compiled(policy) for policy in ("dense", "lowbit", "hsa", "quest"))
    assert not to_be_compiled("sparq")  # has no kernel
    assert to_be_compiled("dense", group=decode_step.MOST_DENSE_ROWS)
    assert not to_be_compiled("dense", group=decode_step.MOST_DENSE_ROWS + 1)
    assert to_be_compiled("lowbit", group=decode_step.MOST_DENSE_ROWS + 1)
    assert not to_be_compiled("dense", torch.float64)
    script = "from tests.kernels.cpu.test_steps import run_steps; run_steps()"
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "KVZ_CACHE": str(tmp_path)})
    assert to_be_compiled("lowbit")
    for policy in ("dense", "hsa"):
        assert not to_be_compiled(policy)
        assert all(to_be_compiled(policy, dtype) for dtype in (torch.bfloat16, torch.float16))
    assert not decode_step.is_to_be_compiled(torch.device("meta"), "dense", torch.float32, 3)
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(b"nothing")
    assert to_be_compiled("dense")
