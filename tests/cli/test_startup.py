"""Help, versions and usage: quick, without torch, and useful."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvz.version import __version__
from tests.cli.conftest import Run
from tests.cli.harness import ENVIRONMENT

LIST_MODULES = """
import sys
from kvz.cli.main import run
status = run(sys.argv[1:])
named = {"torch", "numpy", "transformers", "safetensors", "huggingface_hub", "accelerate", "sympy", "filelock", "gguf"}
heavy = named & set(sys.modules)
print(*sorted(heavy), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["compress", "-h"], ["inspect"], ["nonsense"]], ids=str
)
def test_quick_commands_import_nothing_heavy(archive: Path, arguments: list[str]) -> None:
    more = [str(archive)] if arguments == ["inspect"] else []
    command = [sys.executable, "-c", LIST_MODULES, *arguments, *more]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    assert result.returncode == (2 if arguments == ["nonsense"] else 0), result.stderr
    assert result.stderr.splitlines()[-1].strip() == ""


def test_importing_kvz_does_not_import_torch() -> None:
    code = "import sys, kvz; print('torch' in sys.modules, kvz.__version__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == f"False {__version__}\n"


def test_refusals_that_need_no_model_come_before_torch(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n")
    command = [sys.executable, "-c", "import sys; sys.modules['transformers'] = None\n" + LIST_MODULES]
    for arguments in (["ask", str(tmp_path / "no.kvz"), " "], ["compress", "-"], ["ask", "a.kvz"]):
        result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
        first, heavy = result.stderr.splitlines()
        assert first.startswith("kvz: ")
        assert "torch" not in heavy


def test_version(run: Run) -> None:
    assert run("--version").succeeded().text == f"kvz {__version__}\n"


def test_help_names_every_command(run: Run) -> None:
    text = run("--help").succeeded().text
    assert [name for name in ("compress", "ask", "inspect", "verify", "models") if f"  {name} " not in text] == []


def test_help_says_which_share_the_ratio_is(run: Run) -> None:
    text = " ".join(run("compress", "--help").succeeded().text.split())
    assert "to KEEP" in text
    assert "keeps 30 % and frees 70 %" in text


def test_no_arguments_show_the_help(run: Run) -> None:
    outcome = run()
    shown = outcome.text + outcome.err
    assert "Commands:\n" in shown
    assert not shown.startswith("kvz: ")


def test_an_unknown_command(run: Run) -> None:
    run("compres").failed("compres", "kvz --help", status=2)


def test_debug_shows_the_traceback_and_the_line(run: Run, tmp_path: Path) -> None:
    for arguments in (["--debug", "inspect", tmp_path], ["inspect", tmp_path, "--debug"]):
        outcome = run(*arguments)
        assert outcome.status == 1
        assert "Traceback" in outcome.err
        assert outcome.err.splitlines()[-1].startswith("kvz: ")
        assert outcome.out == b""


def test_an_answer_needs_no_transformers(archive: Path) -> None:
    """Importing it takes longer than the answer."""
    command = [sys.executable, "-c", LIST_MODULES, "ask", str(archive), "What?", "--max-new-tokens", "2"]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    loaded = result.stderr.splitlines()[-1].split()
    assert loaded == ["numpy", "safetensors", "torch"]
