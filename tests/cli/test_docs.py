"""docs/cli.md and docs/methods.md agree with the command line."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from kvz.cli.main import make_app, run
from kvz.scoring.registry import METHODS
from tests.conftest import TEXT

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """docs/generate_cli.py."""
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(name: str) -> str:
    """The part of docs/cli.md about one command."""
    return (DOCS / "cli.md").read_text(encoding="utf-8").partition(f"\n## kvz {name}\n")[2].partition("\n## ")[0]


def test_up_to_date(generator: ModuleType) -> None:
    written = generator.TARGET.read_text(encoding="utf-8")
    (layout,) = re.findall(r"with typer (\S+);", written)
    if layout != typer.__version__:
        pytest.skip(f"typer {typer.__version__} lays help out in its own way; docs/cli.md is by {layout}")
    assert generator.render() == written, "run scripts/docs"


def test_every_command_and_option_is_there(generator: ModuleType) -> None:
    root: Any = typer.main.get_command(make_app())
    assert generator.commands() == list(root.commands)
    for name, command in root.commands.items():
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else []:
                assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", section(name)), f"kvz {name} {option}"


def test_check_notices_a_change(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generator, "TARGET", tmp_path / "cli.md")
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    (tmp_path / "cli.md").write_text("old")
    assert generator.main(["--check"]) == 1
    assert generator.main(["--chekc"]) == 2
    assert "run scripts/docs" in capsys.readouterr().err


def test_every_json_field_is_described(
    tiny_folder: Path,
    text_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KVZ_CACHE", str(tmp_path / "cache"))
    archive = str(text_file.with_suffix(".kvz"))
    lines = {
        "compress": ["compress", str(text_file), "-m", str(tiny_folder), "--json"],
        "ask": ["ask", archive, "When?", " ", "--max-new-tokens", "2", "--json"],
        "inspect": ["inspect", archive, "--json"],
        "verify": ["verify", archive, "--json"],
        "calibrate": ["calibrate", "-m", str(tiny_folder), "--json"],
        "models": ["models", "--json"],
    }
    for name, line in lines.items():
        assert run(line) == (1 if name == "ask" else 0)  # one of its questions is empty
        output = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        fields = {field for value in output for field in [*value, *value.get("seconds", ())]}
        described = set(re.findall(r"`(\w+)`", section(name)))
        assert fields <= described, f"kvz {name} --json"


def test_the_example_of_a_method_works(
    tiny_folder: Path,
    text_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KVZ_CACHE", str(tmp_path / "cache"))
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(\"\"\".*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, "docs/methods.md", "exec"), names)
    monkeypatch.setitem(METHODS, "keynorm", names["KeyNorm"])
    assert run(["compress", str(text_file), "-m", str(tiny_folder), "--method", "keynorm", "-r", "0.4", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["context_tokens"] == len(TEXT)  # the tiny tokenizer's tokens are bytes
    assert summary["pairs_kept"] == round(0.4 * summary["pairs_total"])
    assert run(["verify", summary["archive"], "--json"]) == 0
