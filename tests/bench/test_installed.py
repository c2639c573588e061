"""What `pip install .` leaves: kvz bench has text to hide things in without a checkout around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
READ = """
import sys
import kvz
from kvz.bench.documents import EXAMPLES
from kvz.bench.tasks.registry import make_task
[sample] = make_task("needle").samples(lambda text: len(text.split()), 3000, 1, 0)
print(kvz.__file__, EXAMPLES, sample.context, sep="\\n")
"""
EDITABLE = """
import site, sys
paths, finders = list(sys.path), list(sys.meta_path)
for name in [name for name in sys.modules if name.startswith("__editable__")]:
    del sys.modules[name]  # this environment's own install may be editable too
sys.path.insert(0, sys.argv[1])
site.addsitedir(sys.argv[1])
sys.path[:0] = [path for path in sys.path if path not in paths]
sys.meta_path[:0] = [finder for finder in sys.meta_path if finder not in finders]
"""


def call(*arguments: str, cwd: Path, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that it leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("kvz", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def from_wheel(source: Path, folder: Path) -> str:
    """What the task makes of an unpacked wheel, in a process that sees no checkout."""
    call("-c", BUILD, "build_wheel", str(folder), cwd=source)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0].rpartition(".")[2] for name in archive.namelist()}
        assert tops == {"kvz", "dist-info"}
        archive.extractall(folder / "site")
        assert (
            "kvz/examples/manual.txt"
            in archive.read(next(name for name in archive.namelist() if name.endswith("/RECORD"))).decode()
        )
    return call("-c", READ, cwd=folder, path=str(folder / "site"))


def check(told: str, site: Path, folder: Path) -> None:
    """That the package in `site` made a context of the examples in `folder`, which are all of them."""
    package, examples, context = told.split("\n", 2)
    assert Path(package) == site / "kvz" / "__init__.py"
    assert Path(examples) == folder
    assert {path.name for path in folder.iterdir()} == {path.name for path in (ROOT / "examples").iterdir()}
    texts = [path.read_text().strip() for path in (ROOT / "examples").glob("*.txt")]
    paragraphs = {paragraph for text in texts for paragraph in text.split("\n\n")}
    assert len(paragraphs & set(context.split("\n\n"))) > 20


def test_a_wheel_has_the_examples(source: Path, tmp_path: Path) -> None:
    check(from_wheel(source, tmp_path), tmp_path / "site", tmp_path / "site" / "kvz" / "examples")


def test_a_source_distribution_has_what_a_wheel_of_it_needs(source: Path, tmp_path: Path) -> None:
    call("-c", BUILD, "build_sdist", str(tmp_path), cwd=source)
    [packed] = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "unpacked")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    check(from_wheel(unpacked, wheel), wheel / "site", wheel / "site" / "kvz" / "examples")


def test_an_editable_install_has_those_of_the_checkout(source: Path, tmp_path: Path) -> None:
    call("-c", BUILD, "build_editable", str(tmp_path), cwd=source)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(tmp_path / "site")
    told = call("-c", EDITABLE + READ, str(tmp_path / "site"), cwd=tmp_path)
    check(told, source, source / "examples")
