"""kvz calibrate, and compressing with the head scores it leaves."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kvz.format.reader import open_archive
from kvz.models.language_model import LanguageModel
from kvz.scoring.calibration import calibrate, calibration_text
from tests.cli.conftest import Run
from tests.conftest import TEXT
from tests.near import NETWORK, assert_near, forward_terms
from tests.tiny import make_model_folder


@pytest.fixture
def long_file(tmp_path: Path) -> Path:
    path = tmp_path / "long.txt"
    path.write_text(TEXT * 6)
    return path


@pytest.fixture
def calibrated(run: Run, tiny_folder: Path, text_file: Path) -> None:
    run("calibrate", "-m", tiny_folder, "--text", text_file).succeeded()


def test_scores_are_stored_once_and_are_the_models_own(
    run: Run, tiny: LanguageModel, tiny_folder: Path, text_file: Path
) -> None:
    made = run("calibrate", "-m", tiny_folder, "--text", text_file, "--json").succeeded()
    [summary] = made.objects
    want = calibrate(tiny, TEXT).scores
    assert summary["scores"] == want.tolist()
    assert summary["fingerprint"] == tiny.identity.fingerprints.model
    stored = load_file(summary["stored"])["scores"]
    assert stored.dtype == torch.float32
    assert torch.equal(stored, want)
    again = run("calibrate", "-m", tiny_folder, "--json").succeeded()
    assert again.objects[0]["scores"] == summary["scores"]
    assert "already" in again.err


def test_whole_heads_are_kept_and_streaming_heads_keep_sink_and_window(
    compress: Run, calibrated: None, tiny: LanguageModel, long_file: Path, out: Path
) -> None:
    compress(long_file, "--method", "kvzip-head", "-r", 0.4, "--sink", 3, "--window", 20).succeeded()
    info = open_archive(out / "a.kvz").manifest
    length = info.prompt.context_tokens
    kept = torch.tensor(info.compression.kept)
    assert info.compression.pairs_kept == round(0.4 * 6 * length)
    assert sorted(kept.flatten().tolist()) == [23, 23, 23, round(2.4 * length) - 2 * length - 69, length, length]
    best = calibrate(tiny, TEXT).scores.flatten().topk(2).indices
    assert (kept.flatten()[best] == length).all()
    assert "score" in compress(long_file, "-f", "--json", "--method", "kvzip-head", "-r", 0.4).objects[0]["seconds"]


def test_export_and_import_in_both_formats(
    run: Run,
    compress: Run,
    calibrated: None,
    tiny_folder: Path,
    out: Path,
    long_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("heads.safetensors", "heads.tsv"):
        run("calibrate", "-m", tiny_folder, "--export", out / name).succeeded()
    scores = load_file(out / "heads.safetensors")["scores"]
    torch.testing.assert_close(torch.from_numpy(np.loadtxt(out / "heads.tsv")).float(), scores, rtol=0, atol=1e-8)
    monkeypatch.setenv("KVZ_CACHE", str(out / "other-cache"))
    compress(long_file, "--method", "duo").failed("no head scores", "kvz calibrate -m")
    plain = [line for line in (out / "heads.tsv").read_text().splitlines() if not line.startswith("#")]
    (out / "duo.tsv").write_text("\n".join(plain))
    compress(long_file, "--method", "duo", "-r", 0.7, "--window", 9, "--head-scores", out / "duo.tsv").succeeded()
    run("calibrate", "-m", tiny_folder, "--import", out / "duo.tsv").succeeded()
    compress(long_file, "--method", "duo", "-r", 0.7, "--window", 9, "-f").succeeded()
    used = open_archive(out / "a.kvz").manifest.compression.parameters["head_scores_sha256"]
    assert used == hashlib.sha256(np.loadtxt(out / "duo.tsv").astype("<f4").tobytes()).hexdigest()
    compress(long_file, "--method", "kvzip-head", "-f").failed("no head scores")  # patterns are not KVzip's scores
    compress(long_file, "--method", "kvzip-head", "-f", "--head-scores", out / "duo.tsv").failed("of kind duoattention")
    for name in ("heads.safetensors", "heads.tsv"):
        imported = run("calibrate", "-m", tiny_folder, "--import", out / name, "--json").succeeded().objects[0]
        assert imported["kind"] == "kvzip"
        compress(long_file, "--method", "kvzip-head", "-f").succeeded()


def test_what_an_import_and_a_second_run_leave_out(
    run: Run, tiny_folder: Path, text_file: Path, out: Path, calibrated: None, tiny: LanguageModel
) -> None:
    (out / "duo.tsv").write_text("0.5\t1\n0.25\t0\n1\t1\n")
    exported = run("calibrate", "-m", tiny_folder, "--import", out / "duo.tsv", "--export", out / "x.tsv").succeeded()
    assert str(out / "x.tsv") in exported.err
    assert tiny.identity.fingerprints.model in (out / "x.tsv").read_text()
    for option in (("--again",), ("--dtype", "bfloat16"), ("--device", "cpu")):
        run("calibrate", "-m", tiny_folder, "--import", out / "duo.tsv", *option).failed(option[0], status=2)
    run("calibrate", "-m", tiny_folder, "-f").failed("--export", "--again", status=2)
    before = run("calibrate", "-m", tiny_folder, "--export", out / "x.tsv", "-f", "--json").succeeded().objects[0]
    assert before["kind"] == "kvzip"
    again = run("calibrate", "-m", tiny_folder, "--again", "--json").succeeded()
    assert "computed" in again.err
    assert again.objects[0]["scores"] != before["scores"]  # of our text, not of the fixture's


def test_stored_scores_that_are_damaged_say_how_to_replace_them(
    run: Run, compress: Run, tiny_folder: Path, text_file: Path, calibrated: None
) -> None:
    stored = Path(run("calibrate", "-m", tiny_folder, "--json").objects[0]["stored"])
    stored.write_bytes(stored.read_bytes()[:40])
    run("calibrate", "-m", tiny_folder).failed(str(stored), "kvz calibrate --again -m")
    compress(text_file, "--method", "kvzip-head").failed(str(stored), "kvz calibrate --again -m")
    few = run("calibrate", "-m", tiny_folder, "--again", "--text", text_file).succeeded()
    assert "only 206 tokens" in few.err
    run("calibrate", "-m", tiny_folder).succeeded()


def test_a_cache_folder_that_cannot_be_written_is_met_before_the_work(
    run: Run, tiny_folder: Path, text_file: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (out / "file").write_text("")
    monkeypatch.setenv("KVZ_CACHE", str(out / "file"))
    failed = run("calibrate", "-m", tiny_folder, "--text", text_file)
    failed.failed("cannot be written")
    assert "prefill" not in failed.err


def test_scores_of_another_model_are_refused(
    run: Run, compress: Run, calibrated: None, tiny_folder: Path, other_weights: Path, out: Path, long_file: Path
) -> None:
    run("calibrate", "-m", tiny_folder, "--export", out / "heads.safetensors").succeeded()
    wanted = ("--method", "kvzip-head", "--head-scores", out / "heads.safetensors")
    compress(long_file, *wanted, model=other_weights).failed("head scores", str(tiny_folder), str(other_weights))
    run("calibrate", "-m", other_weights, "--import", out / "heads.safetensors").failed("head scores")
    compress(long_file, "--method", "kvzip-head", model=other_weights).failed("no head scores", "kvz calibrate")
    assert not (out / "a.kvz").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("short.tsv", b"0.5\t0.5\n", "1 x 2 heads"),
        ("ragged.tsv", b"0.5\t0.5\n0.1\n0.2\t0.3\n", "no table"),
        ("text.tsv", b"a\tb\n", "no table"),
        ("empty.tsv", b"", "no table"),
        ("bytes.tsv", b"\xff\xfe\x00", "no table"),
        ("nan.tsv", b"nan\t0\n1\t1\n1\t1\n", "not finite"),
        ("cut.safetensors", b"\x10\x00\x00", "no file of head scores"),
    ],
)
def test_files_that_hold_no_scores_of_this_model(
    run: Run, tiny_folder: Path, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    run("calibrate", "-m", tiny_folder, "--import", tmp_path / name).failed(name, words)


def test_other_safetensors_files_are_not_taken_for_scores(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    save_file({"scores": torch.rand(3, 2)}, tmp_path / "plain.safetensors")
    run("calibrate", "-m", tiny_folder, "--import", tmp_path / "plain.safetensors").failed("no file of head scores")
    run("calibrate", "-m", tiny_folder, "--import", tmp_path / "none.tsv").failed("no such file")
    for kind in ("x/../../../outside", "", "foo"):
        metadata = {"format": "kvz-head-scores", "kind": kind}
        save_file({"scores": torch.rand(3, 2)}, tmp_path / "kind.safetensors", metadata)
        run("calibrate", "-m", tiny_folder, "--import", tmp_path / "kind.safetensors").failed("of a kind unknown")
    assert list(tmp_path.rglob("outside*")) == []
    save_file(
        {"scores": torch.ones(3, 2, dtype=torch.bool)}, tmp_path / "bool.safetensors", {"format": "kvz-head-scores"}
    )
    run("calibrate", "-m", tiny_folder, "--import", tmp_path / "bool.safetensors").failed("no file of head scores")


def test_a_model_with_weights_that_are_no_numbers_stores_nothing(run: Run, text_file: Path, tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "nan")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.k_proj.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    run("calibrate", "-m", folder, "--text", text_file).failed("layer 1 has scores that are NaN")
    assert list(tmp_path.rglob("*.kvzip.safetensors")) == []


def test_wrong_usage_writes_nothing(run: Run, tiny_folder: Path, text_file: Path, out: Path) -> None:
    run("calibrate", "-m", tiny_folder, "--text", text_file, "--import", out / "x.tsv").failed("--import", status=2)
    run("calibrate", "-m", tiny_folder, "--text", text_file, "--export", out / "x.bin").failed(".safetensors", status=2)
    (out / "there.tsv").write_text("kept")
    run("calibrate", "-m", tiny_folder, "--export", out / "there.tsv").failed("exists", "--force")
    assert (out / "there.tsv").read_text() == "kept"
    (out / "blank.txt").write_text("  \n")
    run("calibrate", "-m", tiny_folder, "--text", out / "blank.txt").failed("blank.txt")
    run("calibrate", "-m", tiny_folder, "--text", "-", stdin=b"").failed("standard input")


def test_a_text_longer_than_the_models_positions_is_cut(run: Run, short_folder: Path) -> None:
    made = run("calibrate", "-m", short_folder, "--json").succeeded().objects[0]
    assert all(0 < value <= 1 for row in made["scores"] for value in row)
    assert len(calibration_text()) > 5000


@pytest.mark.model
def test_scores_of_the_embedded_model_are_shipped(
    embedded: LanguageModel, monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    """They are found without any calibration, and are what calibration computes."""
    from kvz.scoring.head_score_file import KVZIP
    from kvz.scoring.head_scores import find_head_scores

    monkeypatch.setenv("KVZ_CACHE", str(out))
    shipped = find_head_scores(embedded.identity, None, (KVZIP,))
    assert shipped.scores.shape == (30, 3)
    computed = calibrate(embedded, calibration_text())
    terms = forward_terms(embedded.identity.config, len(embedded.tokenizer.encode_plain(calibration_text())))
    assert_near(computed.scores, shipped.scores, terms, size=NETWORK, floor=0.1)
    assert json.loads(json.dumps(shipped.model_id)) == embedded.source.id
    assert os.listdir(out) == []


@pytest.mark.model
@pytest.mark.parametrize("folder", ["~no-such-user/kvz", "x" * 300])
def test_shipped_scores_need_no_cache_folder(
    embedded: LanguageModel, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """There is no home, or it is out of reach."""
    from kvz.scoring.head_score_file import KVZIP
    from kvz.scoring.head_scores import find_head_scores

    monkeypatch.setenv("KVZ_CACHE", folder)
    assert find_head_scores(embedded.identity, None, (KVZIP,)).scores.shape == (30, 3)
