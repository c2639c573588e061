"""Every launch of every kernel compiles for A100 and H100, within what a launch is held to; no GPU is needed.

In a process of its own, because Triton decides when it is imported whether it interprets kernels or compiles them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvz.bench.kernels import CHIPS, Row, compile_all, markdown
from kvz.errors import UsageError


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """The report's rows, and a page with its tables."""
    folder = tmp_path_factory.mktemp("compiled")
    page = folder / "page.md"
    page.write_text("before\n<!-- kernels -->\n<!-- /kernels -->\nafter\n")
    files = ["--json", str(folder / "rows.json"), "--docs", str(page)]
    kept = ("TRITON_CACHE_DIR", "TRITON_HOME")  # what was compiled before is not compiled again
    environment = {name: value for name, value in os.environ.items() if name in kept or not name.startswith("TRITON_")}
    subprocess.run(
        [sys.executable, "-m", "kvz.bench.kernels", "--jobs", str(min(2, os.cpu_count() or 1)), *files],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return json.loads((folder / "rows.json").read_text())["rows"], page


def test_every_launch_is_what_it_is_held_to(report):
    rows, _ = report
    assert {row["chip"] for row in rows} == set(CHIPS)
    assert [f"{row['kernel']}, sm_{row['chip']}: {row['faults']}" for row in rows if row["faults"]] == []
    names = [(row["chip"], row["kernel"], row["configuration"]) for row in rows]
    assert len(set(names)) == len(names)  # none is told apart by what the table does not show


def test_every_kernel_and_head_dimension_is_there(report):
    rows, page = report
    for kernel in ("ragged_attention", "merge_slots", "column_max", "column_sum"):
        for dim in (64, 80, 96, 128, 256):
            assert any(row["kernel"].startswith(kernel) and f"D={dim} " in row["kernel"] for row in rows)
    text = page.read_text()
    assert text.startswith("before\n<!-- kernels -->\nTriton ")
    assert text.endswith("<!-- /kernels -->\nafter\n")
    assert sum(line.startswith("| column_max") for line in text.splitlines()) == sum(
        row["kernel"].startswith("column_max") for row in rows if row["chip"] == 80
    )


def test_interpreted_kernels_are_not_reported(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageError, match="TRITON_INTERPRET"):
        compile_all()


def test_tables_show_what_was_made_for_both_chips():
    row = Row("name", "KEYS 64, 4 warps, 2 stages", 80, 99, 2560, 8, 64, False, ("spilled",))
    lines = markdown([row, replace(row, chip=90, registers=101)])
    assert lines[-1] == "| name | KEYS 64, 4 warps, 2 stages | 99 / 101 | 2.5 | 8 | 64 | no |"
    assert "A100 (sm_80) / H100 (sm_90)" in lines[0]
