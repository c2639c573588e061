"""The scoring benchmark on a tiny model."""

from __future__ import annotations

import json

import pytest

from kvz.bench.scoring import main
from kvz.errors import UsageError


def test_a_run_measures_writes_and_draws(tiny_folder, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- scoring -->\n<!-- /scoring -->\n")
    line = ["--model", str(tiny_folder), "--dtype", "float32", "--lengths", "100,300", "--methods", "kvzip,snapkv"]
    main([*line, "--json", str(tmp_path / "run.json"), "--into", str(page)])
    rows = json.loads((tmp_path / "run.json").read_text())["rows"]
    assert [(row["tokens"], row["method"]) for row in rows] == [
        (100, "kvzip"), (100, "snapkv"), (300, "kvzip"), (300, "snapkv")
    ]  # fmt: skip
    assert all(row["seconds"] > 0 and row["extra_bytes"] >= 0 for row in rows)
    assert rows[2]["cache_bytes"] > 2 * rows[0]["cache_bytes"]
    assert "| 300 |" in page.read_text()
    out, err = capsys.readouterr()
    assert out.strip() in page.read_text()
    assert [line.partition(":")[0] for line in err.splitlines() if " tokens, " in line] == [
        f"{n} tokens, {method}" for n in (256, 100, 300) for method in ("kvzip", "snapkv")
    ], "each method once before anything is measured"


def test_drawing(tiny_folder, tmp_path):
    rows = [
        {
            "method": "kvzip",
            "tokens": n,
            "seconds": n / 9,
            "extra_bytes": n,
            "cache_bytes": n,
            "prefill_seconds": n / 20,
        }
        for n in (100, 200)
    ]
    run = tmp_path / "run.json"
    run.write_text(json.dumps({"machine": "m", "model": "x", "dtype": "float32", "rows": rows}))
    try:
        main(["--from", str(run), "--plot", str(tmp_path / "plot.svg")])
    except UsageError as error:
        pytest.skip(str(error))
    assert "<svg" in (tmp_path / "plot.svg").read_text()
