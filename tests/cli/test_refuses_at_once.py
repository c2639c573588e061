"""Refusals that need no tensor come before torch is imported, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvz.models.language_model import LanguageModel
from tests.cli.harness import ENVIRONMENT
from tests.format.archives import Forgery

# Runs command lines one after another; what would import a heavy module is told, and does not get it.
RUN = """
import contextlib, io, json, sys
from kvz.cli.main import run

class Watch:
    asked = []
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "numpy", "transformers", "numba", "triton", "tokenizers"):
            self.asked.append(name)
            raise ImportError(name)

sys.meta_path.insert(0, Watch())
for arguments in json.load(sys.stdin):
    Watch.asked = []
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        status = run(arguments)
    print(json.dumps([status, err.getvalue(), sorted(set(Watch.asked))]))
"""

ASKING = """
TEXT Q
DAMAGED Q
SHORT Q
MOVED Q
NONE Q
- Q
A Q --temperature nan
A Q --temperature -1
A Q --temperature 1 --top-k 0
A Q --temperature 1 --top-p 2
A Q --temperature 1 --seed -1
A Q --seed 3
A Q --max-new-tokens 0
A Q --policy foo
A Q --policy hsa
A Q --policy dense --budget 64
A Q --budget 3
A Q --page-size 4
A Q --page-size many
A Q --device toaster
A Q -m NONE
A Q -m NONE.gguf
A Q -m EMPTY
A Q -m TEXT
A Q -m FOLDER
"""
COMMANDS = {
    "ask": ASKING
    + """
A
A EMPTY
A -
A Q --batch-size 0
A Q --turns TEXT
A --questions NONE
A --questions OTHER
A --turns TEXT --batch-size 2
""",
    "chat": ASKING.replace(" Q", ""),
    "compress": """
NONE
FOLDER
BLANK
BINARY
- -o -
TEXT -o EXISTS
TEXT -o FOLDER
TEXT -o NONE/out.kvz
TEXT -o TEXT
TEXT -o EMPTY
TEXT -r 2
TEXT -r nan
TEXT --budget 0
TEXT -r 0.3 --budget 5
TEXT --method foo
TEXT --window 8
TEXT --method snapkv --window 0
TEXT --method snapkv --kernel 4
TEXT --method snapkv --query EMPTY
TEXT --method pyramidkv --window 0
TEXT --method rocketkv --kernel 2
TEXT --method h2o --query Q
TEXT --method recent --sink -1
TEXT --method random --seed -1
TEXT --method duo --sink -1
TEXT --method kvzip-head --head-scores NONE
TEXT --method kvzip --weight foo
TEXT --method kvzip+ --chunk 0
TEXT --method full -r 0.5
TEXT --chunk 0
TEXT --instruction foo
TEXT --turn -1
TEXT --allocation foo
TEXT --allocation uniform --floor 0.2
TEXT --floor 2
TEXT --keep-recent -1
TEXT --protect all
TEXT --protect-text EMPTY
TEXT --truncate most
TEXT --index foo
TEXT --page-size 4
TEXT --index pages --page-size 0
TEXT --index pages --page-bits 7
TEXT --dtype int3
TEXT --device toaster
TEXT --offload --device cpu
TEXT -m NONE
TEXT -m FOLDER
""",
    "inspect": """
NONE
TEXT
SHORT
A --html x --json
A --force
A --html EMPTY
A --html EXISTS
A --html FOLDER
A --html A
A --html NEW -m NONE
""",
    "verify": """
NONE
TEXT
SHORT
DAMAGED
A -m NONE
""",
    "models": """
--foo
""",
    "calibrate": """
--import OTHER --again
--import NONE
--force
--export NEW
--export EXISTS.tsv
--text NONE
--text BLANK
--device toaster
--dtype int3
-m NONE
""",
    "bench": """
--method foo
--method snapkv@7.5
--method snapkv/foo@256
--task foo
--ratio 2
--ratio x
--budget 1
--length 0
--samples 0
--seed -1
--protocol foo
--data OTHER
--texts FOLDER --task squad
--template foo
--task squad
--task squad --data NONE
--force
--out EMPTY
--out TEXT
--out FILLED
--device toaster
--dtype int3
-m NONE
report
report NONE
report FILLED
reprot x
""",
}
CASES = [[command, *line.split()] for command, lines in COMMANDS.items() for line in lines.split("\n") if line]


@pytest.fixture(scope="module")
def places(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the words in capital letters stand for."""
    folder = tmp_path_factory.mktemp("places")
    forged = Forgery.of(archive)
    data = archive.read_bytes()
    forged.manifest["model"]["id"] = str(folder / "gone")
    for name, content in {
        "TEXT": b"A text.\n",
        "OTHER": b'{"id": [], "question": "Who?"}\n',
        "BLANK": b" \n",
        "BINARY": b"a\0b",
        "EXISTS": b"there",
        "EXISTS.tsv": b"there",
        "DAMAGED": data[:-1] + bytes([data[-1] ^ 1]),
        "SHORT": data[:-1],
        "MOVED": forged.sealed(),
        "FILLED/more": b"more",
        "FOLDER/more": b"more",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "TEXT").with_suffix(".txt").write_bytes(b"A text.\n")
    named = {path.name: str(path) for path in folder.iterdir()}
    return named | {"A": str(archive), "EMPTY": "", "TEXT": str(folder / "TEXT.txt")} | {
        name: str(folder / name) for name in ("NONE", "NONE.gguf", "NONE/out.kvz", "NEW")
    }  # fmt: skip


@pytest.fixture(scope="module")
def refusals(places: dict[str, str]) -> dict[str, tuple[int, str, list[str]]]:
    """Status, stderr and heavy modules asked for, of each case."""
    arguments = [[places.get(word, word) for word in case] for case in CASES]
    command = [sys.executable, "-c", RUN]
    result = subprocess.run(
        command, input=json.dumps(arguments), capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=True
    )
    found: list[Any] = [json.loads(line) for line in result.stdout.splitlines()]
    return {" ".join(case): (status, err, asked) for case, (status, err, asked) in zip(CASES, found, strict=True)}


@pytest.mark.parametrize("case", [" ".join(case) for case in CASES])
def test_a_refusal_comes_before_torch(refusals: dict[str, tuple[int, str, list[str]]], case: str) -> None:
    status, err, asked = refusals[case]
    assert asked == [], err
    assert status in (1, 2)
    assert err.startswith("kvz: ")
    assert err.count("\n") == 1
    assert "unexpected" not in err


def test_the_places_are_good_for_something(tiny: LanguageModel, places: dict[str, str]) -> None:
    """A refusal is that of its case: without it the archive answers."""
    import kvz

    assert kvz.load(places["A"]).session(tiny).ask("Who?", 1).context_tokens > 0
