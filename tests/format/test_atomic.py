"""Writing: a file is complete under its name or not there at all, and no other file is harmed."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvz.archive import load
from kvz.errors import OutputError
from kvz.format import atomic
from kvz.format.atomic import atomic_file, check_target
from kvz.format.writer import write_archive
from tests.format.archives import Sample


@pytest.fixture(params=["nameless", "named"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a temporary file that has no name, and, as on other systems, with one that has."""
    if request.param == "named":
        monkeypatch.setattr(atomic, "_open_nameless", lambda folder: None)


class Boom(Exception):
    pass


def write(path: Path, overwrite: bool, meanwhile: Callable[[], object]) -> None:
    """Write a file, and do something else before it is complete."""
    with atomic_file(path, overwrite) as file:
        file.write(b"ours")
        meanwhile()


def failure(error: type[BaseException]) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def other_folder(path: Path) -> None:
    path.mkdir()
    (path / "theirs").touch()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_block_that_ends_leaves_the_file_alone(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "a.kvz"
    with atomic_file(path, overwrite) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert names(tmp_path) == ["a.kvz"]


@pytest.mark.usefixtures("either_way")
def test_the_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    for name, overwrite in (("a", False), ("a", True), ("b", True)):
        with atomic_file(tmp_path / name, overwrite) as file:
            file.write(b"x")
        assert (tmp_path / name).stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt, SystemExit, MemoryError])
def test_an_exception_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write(tmp_path / "a.kvz", False, failure(error))
    assert names(tmp_path) == []


@pytest.mark.usefixtures("either_way")
def test_an_exception_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "a.kvz").write_bytes(b"old")
    with pytest.raises(Boom):
        write(tmp_path / "a.kvz", True, failure(Boom))
    assert (tmp_path / "a.kvz").read_bytes() == b"old"
    assert names(tmp_path) == ["a.kvz"]


@pytest.mark.usefixtures("either_way")
def test_an_existing_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "a.kvz"
    path.write_bytes(b"old")
    with pytest.raises(OutputError, match="--force"), atomic_file(path, False):
        pass
    assert path.read_bytes() == b"old"
    with atomic_file(path, True) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.kvz"]


@pytest.mark.usefixtures("either_way")
def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.kvz"
    with pytest.raises(OutputError, match="exists"):
        write(path, False, lambda: path.write_bytes(b"theirs"))
    assert path.read_bytes() == b"theirs"
    assert names(tmp_path) == ["a.kvz"]


@pytest.mark.usefixtures("either_way")
def test_a_file_that_appears_at_the_last_moment_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.kvz"

    def after_theirs(publish: Callable[..., None]) -> Callable[..., None]:
        def late(source: Any, target: Any, **options: Any) -> None:
            if Path(target) == path:
                path.write_bytes(b"theirs")
            publish(source, target, **options)

        return late

    monkeypatch.setattr(os, "replace", after_theirs(os.replace))
    monkeypatch.setattr(os, "link", after_theirs(os.link))
    with pytest.raises(OutputError, match="exists"):
        write(path, False, lambda: None)
    assert path.read_bytes() == b"theirs"
    assert names(tmp_path) == ["a.kvz"]


@pytest.mark.usefixtures("either_way")
def test_an_interrupt_at_the_last_moment_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: Any, target: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.kvz", True, lambda: None)
    assert names(tmp_path) == []


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_name_that_cannot_be_given_leaves_nothing(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "a.kvz"
    with pytest.raises(OutputError):
        write(path, overwrite, lambda: other_folder(path))
    assert names(tmp_path) == ["a.kvz"]
    assert names(path) == ["theirs"]


@pytest.mark.usefixtures("either_way")
def test_two_files_written_to_one_folder_at_once_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def replace_after_another(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "replace", replace)
        with atomic_file(tmp_path / "b.kvz", True) as file:
            file.write(b"second")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_after_another)
    with atomic_file(tmp_path / "a.kvz", True) as file:
        file.write(b"first")
    assert (tmp_path / "a.kvz").read_bytes() == b"first"
    assert (tmp_path / "b.kvz").read_bytes() == b"second"
    assert names(tmp_path) == ["a.kvz", "b.kvz"]


def test_a_link_is_replaced_and_what_it_points_to_is_not(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_file(tmp_path / "link", True) as file:
        file.write(b"new")
    assert (tmp_path / "real").read_bytes() == b"old"
    assert (tmp_path / "link").read_bytes() == b"new"


@pytest.mark.parametrize("target", ["nowhere", "link", "no/folder/a.kvz"])
def test_a_link_to_nothing_is_refused_early_and_replaced_when_told(tmp_path: Path, target: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    with pytest.raises(OutputError, match=r"link exists; give --force"):
        check_target(link, False)
    check_target(link, True)
    with atomic_file(link, True) as file:
        file.write(b"new")
    assert names(tmp_path) == ["link"]
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"


def test_a_link_to_a_file_or_folder_is_refused_early(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("folder", "is a folder"), ("file", "--force"), ("pipe", "not a regular file")):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
        with pytest.raises(OutputError, match=message):
            check_target(tmp_path / f"to-{name}", False)


@pytest.mark.parametrize("name", ["n" * 300, "zero\0byte"])
def test_a_name_that_no_file_has_is_refused_early(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        check_target(tmp_path / name, False)
    assert names(tmp_path) == []


def test_a_dangling_link_is_not_replaced_without_being_told(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="exists"), atomic_file(tmp_path / "link", False) as file:
        file.write(b"new")
    assert names(tmp_path) == ["link"]
    assert (tmp_path / "link").is_symlink()


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError), atomic_file(pipe, True) as file:
        file.write(b"new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "is a folder"), ("there", "--force"), ("no/a.kvz", "does not exist"), ("there/a.kvz", "does not exist")],
)
def test_a_target_that_cannot_be_is_refused_early(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(OutputError, match=message):
        check_target(tmp_path / name, False)
    assert names(tmp_path) == ["there"]


def test_a_name_too_long_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError), atomic_file(tmp_path / ("n" * 300), False) as file:
        file.write(b"x")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EFBIG, "ulimit"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "read-only"),
        (errno.EIO, "cannot be written"),
    ],
)
def test_an_error_of_the_system_is_told_in_words(tmp_path: Path, number: int, message: str) -> None:
    with pytest.raises(OutputError, match=message) as caught, atomic_file(tmp_path / "a.kvz", False):
        raise OSError(number, os.strerror(number))
    assert str(tmp_path / "a.kvz") in str(caught.value)
    assert names(tmp_path) == []


@contextlib.contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Files may not grow past `nbytes`; Python ignores SIGXFSZ, so that writing more is an error."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("limit", [0, 100, 5000])
def test_a_file_that_may_not_grow_leaves_nothing(tmp_path: Path, sample: Sample, limit: int) -> None:
    with largest_file(limit), pytest.raises(OutputError, match="ulimit") as caught:
        write_archive(tmp_path / "a.kvz", sample.manifest, sample.cache, sample.token_ids)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 8 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.usefixtures("either_way")
def test_a_full_disk_leaves_nothing_and_keeps_what_was_there(small_disk: Path, sample: Sample) -> None:
    path = small_disk / "a.kvz"
    path.write_bytes(b"old")
    with pytest.raises(OutputError, match="no space left"):
        write_archive(path, sample.manifest, sample.cache, sample.token_ids, overwrite=True)
    assert names(small_disk) == ["a.kvz"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("moment", [1, 5, 12])
def test_write_archive_interrupted_between_tensors_leaves_nothing(tmp_path: Path, sample: Sample, moment: int) -> None:
    told: list[int] = []

    def interrupt(nbytes: int) -> None:
        told.append(nbytes)
        if len(told) == moment:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(tmp_path / "a.kvz", sample.manifest, sample.cache, sample.token_ids, done=interrupt)
    assert names(tmp_path) == []


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from kvz.format.atomic import atomic_file
with atomic_file(Path(sys.argv[1]), True) as file:
    while True:
        file.write(bytes(1 << 20))
        file.flush()
        print("more", flush=True)
        sys.stdin.readline()
"""


def test_a_killed_process_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.kvz"
    path.write_bytes(b"old")
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"more\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    if hasattr(os, "O_TMPFILE"):
        assert names(tmp_path) == ["a.kvz"]


def test_an_archive_written_over_an_older_one_loads(tmp_path: Path, sample: Sample) -> None:
    path = tmp_path / "a.kvz"
    path.write_bytes(b"something else")
    sample.write(path, overwrite=True)
    assert load(path).cache.pairs == sample.cache.pairs
