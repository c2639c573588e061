"""Every archive ever written is read for ever: the golden archives give the answers and logits they must give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.cases import CASES, GOLDEN, Case
from tests.golden.reference import Reference, read_kvz

# What logits may differ by. The reference rounds nothing but pairs as they are stored, and float32 arithmetic that does
# the same is within 7e-4 of it in bfloat16. Today's code keeps 0.045 (0.025 with AVX-512 and AVX2, 0.038 without): it
# rounds queries, and what attention gives, as well.
TOLERANCE = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.045}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # ten times as fast for models as small as these
_ROOT = GOLDEN.parents[1]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where another process left what it was answered."""
    folder = tmp_path_factory.mktemp("golden")
    command = [sys.executable, "-m", "tests.golden.ask", str(folder)]
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def answers_of(folder: Path, case: Case) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((folder / "answers.json").read_text(encoding="utf-8"))[case.name]
    return answers


def logits_of(folder: Path, case: Case, way: str) -> Any:
    return np.load(folder / f"{case.name}.{way}.npy")


@every_case
@pytest.mark.parametrize("way", ["dense", "lowbit", "hsa"])
def test_the_answers_are_those_of_the_reference(asked: Path, case: Case, way: str) -> None:
    """Whether everything is read, or a budget that covers everything is chosen."""
    assert answers_of(asked, case)[way] == json.loads(case.answers.read_text(encoding="utf-8"))


@every_case
@pytest.mark.parametrize("way", ["dense", "lowbit", "hsa"])
def test_the_logits_are_those_of_the_reference(asked: Path, case: Case, way: str) -> None:
    expected = np.load(case.logits)
    np.testing.assert_allclose(logits_of(asked, case, way), expected, rtol=0, atol=TOLERANCE[case.dtype])


@pytest.mark.parametrize(
    ("case", "policy"),
    [(case, policy) for case in CASES for policy in case.selects],
    ids=lambda x: getattr(x, "name", x),
)
def test_a_stored_index_chooses_as_one_made_from_the_keys(asked: Path, case: Case, policy: str) -> None:
    stored, bare = (logits_of(asked, case, f"{policy}-16{end}") for end in ("", "-bare"))
    np.testing.assert_allclose(stored, bare, rtol=0, atol=1e-5)
    assert np.abs(stored - logits_of(asked, case, "dense")).max() > 0.1  # it did choose


@every_case
def test_an_archive_is_what_its_name_says(case: Case) -> None:
    manifest, token_ids, _ = read_kvz(case.archive)
    version = case.name.split("-")[1]
    assert f'"kvz_version":"{version}"'.encode() in case.archive.read_bytes()
    assert manifest["model"]["dtype"] == case.dtype
    assert (token_ids is None) == ("no-text" in case.name)
    assert (manifest.get("planes") is None) == ("planes" not in case.name)
    bits = (manifest.get("pages") or {}).get("bits")
    assert bits == next((n for n in (16, 8) if f"pages{n}" in case.name), None)
    assert ("gemma3" in case.name) == any(layer.get("window") for layer in manifest["model"]["layers"])


@every_case
def test_the_expected_values_follow_from_archive_and_weights(case: Case) -> None:
    """They are the reference's, not those of kvz; and no answer hangs on a rounding error."""
    reference, rows = Reference(case.archive, case.model), []
    for item in json.loads(case.answers.read_text(encoding="utf-8")):
        ids, logits = reference.answer(item["question"], case.most)
        assert (item["ids"], item["text"]) == (ids, reference.text(ids))
        rows.append(logits.float().numpy())
    expected = np.load(case.logits)
    np.testing.assert_allclose(np.concatenate(rows), expected, rtol=0, atol=1e-5)
    second, best = np.sort(expected, axis=1)[:, -2:].T
    assert (best - second > max(0.1, 2 * TOLERANCE[case.dtype])).all()
