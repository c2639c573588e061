"""An archive's file that is replaced, overwritten or cut while it is in use: one file is read, and changes are told."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kvz
from kvz.decode.conversation import Conversation
from kvz.errors import ArchiveError, CorruptArchive
from kvz.format import mounts
from kvz.format.reader import open_archive
from kvz.format.tensors import read_cache
from kvz.models.language_model import LanguageModel
from tests.conftest import TEXT
from tests.format.archives import Sample, make_sample, same_bits, tensors_of

FEW = 6


@pytest.fixture(scope="module")
def two_archives(tiny: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two archives of the same size and model."""
    folder = tmp_path_factory.mktemp("two")
    for name, text in (("a", TEXT), ("b", TEXT.swapcase())):
        kvz.compress(text, tiny, ratio=0.5, allocation="uniform").save(folder / name)
    first, second = ((folder / name).read_bytes() for name in ("a", "b"))
    assert len(first) == len(second)
    assert first != second
    return first, second


@pytest.fixture
def path(two_archives: tuple[bytes, bytes], tmp_path: Path) -> Path:
    """The first archive, written an hour ago."""
    file = tmp_path / "a.kvz"
    file.write_bytes(two_archives[0])
    then = file.stat().st_mtime - 3600
    os.utime(file, (then, then))
    return file


def holds(archive: kvz.Archive, sample: Sample) -> bool:
    read = tensors_of(archive.cache)
    return all(same_bits(read[name], tensor) for name, tensor in tensors_of(sample.cache).items())


@pytest.mark.parametrize("replaced_after", ["header", "checksums"])
def test_an_archive_replaced_while_it_is_read_is_read_to_its_end(
    tmp_path: Path, sample: Sample, replaced_after: str
) -> None:
    path, other = sample.write(tmp_path / "a.kvz"), make_sample(kept=((9, 9), (9, 9), (9, 9)), seed=5)
    opened = open_archive(path)
    if replaced_after == "header":
        other.write(path, overwrite=True)
    for _ in opened.verify_checksums():
        pass
    if replaced_after == "checksums":
        other.write(path, overwrite=True)
    cache, token_ids = read_cache(opened, torch.device("cpu"))
    assert holds(kvz.Archive(opened.manifest, cache, token_ids), sample)
    assert holds(kvz.load(path), other)


def test_an_archive_overwritten_while_it_is_read_is_not_called_damaged(tmp_path: Path, sample: Sample) -> None:
    path = sample.write(tmp_path / "a.kvz")
    opened = open_archive(path)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ArchiveError, match="changed") as caught:
        for _ in opened.verify_checksums():
            pass
    assert not isinstance(caught.value, CorruptArchive)


def asked_alone(archive: kvz.Archive, tiny: LanguageModel) -> Callable[[], Any]:
    session = archive.session(tiny)
    return lambda: session.ask("Why?", FEW)


def asked_together(archive: kvz.Archive, tiny: LanguageModel) -> Callable[[], Any]:
    session = archive.session(tiny)
    return lambda: list(session.ask_all(["Why?", "Who?", "Where?"], FEW, size=2))


def asked_in_turns(archive: kvz.Archive, tiny: LanguageModel) -> Callable[[], Any]:
    talk = Conversation(archive.session(tiny))
    return lambda: talk.ask("Why?", FEW)


def opened_again(archive: kvz.Archive, tiny: LanguageModel) -> Callable[[], Any]:
    return lambda: archive.session(tiny, kvz.Decoding(budget=16))


WAYS = [asked_alone, asked_together, asked_in_turns, opened_again]


@pytest.mark.parametrize("way", WAYS)
def test_a_question_to_an_archive_overwritten_in_place_is_refused(
    path: Path, tiny: LanguageModel, two_archives: tuple[bytes, bytes], way: Callable[..., Callable[[], Any]]
) -> None:
    ask = way(kvz.load(path, mmap=True), tiny)
    ask()
    path.write_bytes(two_archives[1])
    with pytest.raises(ArchiveError, match=r"a\.kvz was changed") as caught:
        ask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [lambda path: os.truncate(path, 100), lambda path: os.utime(path)], ids=["cut", "touched"]
)
def test_the_size_and_the_time_of_change_are_looked_at(
    path: Path, tiny: LanguageModel, change: Callable[[Path], object]
) -> None:
    archive = kvz.load(path, mmap=True)
    change(path)
    with pytest.raises(ArchiveError, match="changed"):
        archive.session(tiny).ask("Why?", FEW)


def test_a_change_in_the_middle_of_an_answer_is_told(
    path: Path, tiny: LanguageModel, two_archives: tuple[bytes, bytes]
) -> None:
    session = kvz.load(path, mmap=True).session(tiny)
    with pytest.raises(ArchiveError, match="changed"):
        session.ask("Why?", FEW, stream=lambda piece: path.write_bytes(two_archives[1]) and None)


def test_an_archive_replaced_by_a_new_file_answers_as_before(
    path: Path, tiny: LanguageModel, two_archives: tuple[bytes, bytes], tmp_path: Path
) -> None:
    session = kvz.load(path, mmap=True).session(tiny)
    before = session.ask("Why?", FEW).ids
    (tmp_path / "new").write_bytes(two_archives[1])
    os.replace(tmp_path / "new", path)
    assert session.ask("Why?", FEW).ids == before
    path.unlink()
    assert session.ask("Why?", FEW).ids == before


def test_an_archive_read_without_a_mapping_answers_whatever_becomes_of_its_file(
    path: Path, tiny: LanguageModel, two_archives: tuple[bytes, bytes]
) -> None:
    session = kvz.load(path, mmap=False).session(tiny)
    before = session.ask("Why?", FEW).ids
    path.write_bytes(two_archives[1])
    assert session.ask("Why?", FEW).ids == before
    os.truncate(path, 0)
    assert session.ask("Why?", FEW).ids == before


@pytest.mark.parametrize("verify", [True, False])
def test_both_ways_to_read_give_the_same(tmp_path: Path, verify: bool) -> None:
    for number, dtype in enumerate((torch.bfloat16, torch.float16, torch.float32)):
        sample = make_sample(dtype=dtype, prefix=number)
        path = sample.write(tmp_path / f"{number}.kvz")
        for mapped in (True, False):
            assert holds(kvz.load(path, verify=verify, mmap=mapped), sample)


def test_a_flipped_byte_is_found_without_a_mapping_too(tmp_path: Path, sample: Sample) -> None:
    path = sample.write(tmp_path / "a.kvz")
    header = open_archive(path).header
    data = bytearray(path.read_bytes())
    data[header.data_start + header.tensors["layers.1.values"].begin] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptArchive, match=r"layers\.1\.values"):
        kvz.load(path, mmap=False)
    assert kvz.load(path, mmap=False, verify=False).cache.pairs == sample.cache.pairs


def test_what_was_changed_in_place_is_not_saved_as_if_it_were_whole(
    path: Path, two_archives: tuple[bytes, bytes], tmp_path: Path
) -> None:
    archive = kvz.load(path, mmap=True)
    path.write_bytes(two_archives[1])
    with pytest.raises(ArchiveError, match="changed"):
        archive.save(tmp_path / "copy.kvz")
    assert not (tmp_path / "copy.kvz").exists()


def test_a_loaded_archive_can_be_copied_and_pickled(path: Path, two_archives: tuple[bytes, bytes]) -> None:
    archive = kvz.load(path, mmap=True)
    same = [copy.copy(archive), copy.deepcopy(archive), pickle.loads(pickle.dumps(archive))]
    want = {name: tensor.clone() for name, tensor in tensors_of(archive.cache).items()}
    path.write_bytes(two_archives[1])
    for other in same[1:]:  # these own their tensors
        read = tensors_of(other.cache)
        assert all(same_bits(read[name], tensor) for name, tensor in want.items())


def test_an_archive_that_has_been_asked_can_be_copied_and_pickled(tiny: LanguageModel) -> None:
    """What it is asked with is loaded again."""
    archive = kvz.compress(TEXT, tiny)
    answer = archive.ask("Who keeps the ledger?", FEW)
    pickled = pickle.dumps(archive)
    assert len(pickled) < 2 * archive.cache.nbytes + archive.cache.index_nbytes
    for other in (copy.copy(archive), copy.deepcopy(archive), pickle.loads(pickled)):
        assert other.ask("Who keeps the ledger?", FEW).ids == answer.ids
    assert pickle.loads(pickle.dumps(answer)) == answer


LOCAL = ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuseblk", "virtiofs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "ceph", "glusterfs")


@pytest.mark.parametrize(("kind", "mapped"), [*((k, True) for k in LOCAL), *((k, False) for k in REMOTE)])
def test_files_of_network_file_systems_are_not_mapped(tmp_path: Path, kind: str, mapped: bool) -> None:
    (tmp_path / "fdinfo").mkdir()
    (tmp_path / "fdinfo" / "7").write_text("pos:\t0\nflags:\t0100000\nmnt_id:\t42\nino:\t7\n")
    (tmp_path / "mountinfo").write_text(
        "22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        f"42 22 0:44 / /mnt/with\\040space rw,relatime shared:9 master:3 - {kind} server:/export rw,vers=4\n"
    )
    assert mounts.is_local(7, tmp_path) is mapped


def test_where_the_system_does_not_say_files_are_mapped(tmp_path: Path) -> None:
    assert mounts.is_local(7, tmp_path)


def test_without_a_word_from_the_user_network_files_are_read(
    path: Path, tiny: LanguageModel, two_archives: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "is_local", lambda handle: False)
    session = kvz.load(path).session(tiny)
    before = session.ask("Why?", FEW).ids
    path.write_bytes(two_archives[1])
    assert session.ask("Why?", FEW).ids == before


def test_many_loads_leave_no_open_file(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for mapped in (True, False) * 10:
        kvz.load(path, mmap=mapped)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
