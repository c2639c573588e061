"""kvz compress refuses: one line on stderr, the right exit status, nothing on stdout, nothing left behind."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest

import kvz
from kvz.cli import main
from kvz.documents import read_document
from kvz.errors import DocumentError
from tests.cli.conftest import Run
from tests.cli.harness import Outcome, endless_stdin
from tests.tiny import make_model_folder

DOCUMENTS = {
    "empty": (b"", ["is empty"]),
    "blank": (b" \n\t \r\n", ["is blank"]),
    "only a byte-order mark": (b"\xef\xbb\xbf", ["is blank"]),
    "latin-1": ("Der Ärger".encode("latin-1"), ["not UTF-8", "0xc4", "offset 4"]),
    "cut in a character": ("ab数".encode()[:-1], ["not UTF-8", "0xe6", "offset 2"]),
    "surrogate": (b"abc\xed\xa0\x80", ["not UTF-8", "0xed", "offset 3"]),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\n", ["PDF", "pdftotext"]),
    "ZIP": (b"PK\x03\x04\x14\0", ["ZIP"]),
    "gzip": (b"\x1f\x8b\x08\0", ["gzip", "gunzip"]),
    "zero byte": (b"text\0text", ["binary", "offset 4"]),
    "UTF-16 little": ("text".encode("utf-16"), ["UTF-16", "iconv"]),
    "UTF-16 big": (b"\xfe\xff" + "text".encode("utf-16-be"), ["UTF-16", "iconv"]),
    "UTF-16 without mark": ("text".encode("utf-16-le"), ["binary", "offset 1"]),
}


@pytest.mark.parametrize(("data", "words"), DOCUMENTS.values(), ids=DOCUMENTS.keys())
@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_document_that_is_no_text(
    compress: Run, tmp_path: Path, out: Path, data: bytes, words: list[str], source: str
) -> None:
    path = tmp_path / "doc.txt"
    path.write_bytes(data)
    if source == "file":
        compress(path).failed(str(path), *words)
    else:
        compress("-", stdin=data).failed("standard input", *words)
    assert os.listdir(out) == []


@pytest.mark.parametrize(
    ("unit", "words", "most"),
    [
        (b"\0", "binary (a zero byte at offset 0)", 1 << 21),
        (b"\xff", "not UTF-8: byte 0xff at offset 0", 1 << 21),
        (b"The ledger is blue.\n", "standard input is longer than 256 MiB", (1 << 28) + (1 << 22)),
    ],
    ids=["zeros", "bytes", "text"],
)
def test_a_document_without_an_end(monkeypatch: pytest.MonkeyPatch, unit: bytes, words: str, most: int) -> None:
    pipe = endless_stdin(monkeypatch, unit)
    with pytest.raises(DocumentError, match=re.escape(words)):
        read_document("-")
    assert pipe.taken <= most


def test_offsets_are_those_of_the_whole_document(tmp_path: Path) -> None:
    path = tmp_path / "doc.txt"
    before = b"a" * ((1 << 20) - 1) + "数".encode()
    path.write_bytes(b"\xef\xbb\xbf" + before[:-3] + "数".encode() * 5 + b"\xff")
    with pytest.raises(DocumentError, match=f"byte 0xff at offset {path.stat().st_size - 1};"):
        read_document(path)
    path.write_bytes(before + b"\0")
    with pytest.raises(DocumentError, match=f"zero byte at offset {len(before)}"):
        read_document(path)


@pytest.mark.parametrize("name", ["missing.txt", "no/folder.txt", "n" * 300, "zero\0byte"])
def test_a_document_that_is_not_there(compress: Run, tmp_path: Path, out: Path, name: str) -> None:
    compress(tmp_path / name).failed(str(tmp_path / name[:4]))
    assert os.listdir(out) == []


def test_a_folder(compress: Run, tmp_path: Path, out: Path) -> None:
    compress(tmp_path).failed(str(tmp_path), "is a folder")
    assert os.listdir(out) == []


@pytest.mark.parametrize("document", ["", ".", "..", "/"])
def test_a_folder_or_nothing_without_an_output(run: Run, tiny_folder: Path, document: str) -> None:
    run("compress", document, "-m", tiny_folder).failed("give a text file", status=1)


def test_a_document_of_no_name_needs_an_output(run: Run, tiny_folder: Path) -> None:
    run("compress", "-", "-m", tiny_folder, stdin=b"text").failed("-o", status=2)


def test_closed_standard_input(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], out: Path
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    status = main.run(["compress", "-", "-o", str(out / "a.kvz")])
    printed, err = capfdbinary.readouterr()
    Outcome(status, printed, err.decode()).failed("standard input")


def test_an_output_that_is_a_link_to_nothing_is_refused_before_any_work(
    run: Run, text_file: Path, out: Path, tmp_path: Path
) -> None:
    (out / "a.kvz").symlink_to(tmp_path / "nowhere")
    outcome = run("compress", text_file, "-o", out / "a.kvz", "-m", tmp_path / "no-such-model")
    outcome.failed("a.kvz exists; give --force to replace it")
    assert (out / "a.kvz").is_symlink()


@pytest.mark.parametrize("ratio", ["0", "-1", "1.5", "nan", "inf", "-0.0", "1e-320"])
def test_a_ratio_out_of_range(compress: Run, text_file: Path, out: Path, ratio: str) -> None:
    compress(text_file, f"-r={ratio}").failed("ratio", status=2)
    assert os.listdir(out) == []


@pytest.mark.parametrize("ratio", ["much", "", "0,3", "30%"])
def test_a_ratio_that_is_no_number(compress: Run, text_file: Path, ratio: str) -> None:
    compress(text_file, "-r", ratio).failed("--ratio", status=2)


@pytest.mark.parametrize("budget", ["0", "-5", "2.5", "many"])
def test_a_budget_out_of_range(compress: Run, text_file: Path, out: Path, budget: str) -> None:
    compress(text_file, f"--budget={budget}").failed("budget", status=2)
    assert os.listdir(out) == []


def test_ratio_and_budget(compress: Run, text_file: Path) -> None:
    compress(text_file, "-r", 0.3, "--budget", 10).failed("-r", "--budget", "not both", status=2)


def test_wrong_usage_is_told_before_a_target_that_exists(compress: Run, text_file: Path, out: Path) -> None:
    (out / "a.kvz").write_text("kept")
    compress(text_file, "--method", "snap").failed("no method 'snap'", status=2)
    compress(text_file, "--protect", "5").failed("no span", status=2)
    compress(text_file).failed("exists", "--force")
    assert (out / "a.kvz").read_text() == "kept"


def test_a_ratio_too_small_for_the_document_says_the_least(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "-r", 0.001).failed("ratio 0.001", "the least is", status=2)
    assert os.listdir(out) == []


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("--method", "magic", "kvzip"),
        ("--allocation", "fair", "nonuniform, uniform"),
        ("--truncate", "most", "head, middle, tail"),
        ("--dtype", "int3", "bfloat16"),
        ("--device", "toaster", "toaster"),
        ("--device", "meta", "meta"),
    ],
)
def test_an_option_with_an_unknown_value(
    compress: Run, text_file: Path, out: Path, option: str, value: str, known: str
) -> None:
    compress(text_file, option, value).failed(f"'{value}'", known, status=2)
    assert os.listdir(out) == []


def test_an_unknown_option(compress: Run, text_file: Path) -> None:
    compress(text_file, "--frobnicate").failed("--frobnicate", "kvz compress --help", status=2)


def test_a_document_too_long_names_both_numbers(compress: Run, text_file: Path, short_folder: Path, out: Path) -> None:
    text_file.write_text("x" * 300)
    compress(text_file, model=short_folder).failed("300 tokens", "256 positions", "--truncate")
    assert os.listdir(out) == []


@pytest.mark.parametrize("part", ["head", "middle", "tail"])
def test_system_text_that_leaves_no_room(
    compress: Run, text_file: Path, short_folder: Path, out: Path, part: str
) -> None:
    text_file.write_text("x" * 300)
    outcome = compress(text_file, "--truncate", part, "--system", "s" * 240, model=short_folder)
    outcome.failed("leave no room", "256 positions", "--system", status=1)
    assert os.listdir(out) == []


@pytest.mark.parametrize("model", ["no-such-model", "no/such/folder", "/no/such/folder"])
def test_an_unknown_model(compress: Run, text_file: Path, out: Path, model: str) -> None:
    compress(text_file, "-m", model).failed(f"'{model}'", "folder")
    assert os.listdir(out) == []


def test_an_empty_model_name(compress: Run, text_file: Path) -> None:
    compress(text_file, "-m", "").failed("empty", status=1)


@pytest.mark.parametrize("model", ["./nothing", "../nothing"])
def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(compress: Run, text_file: Path, model: str) -> None:
    outcome = compress(text_file, "-m", model)
    outcome.failed(model)
    assert "hub (" not in outcome.err
    assert "network" not in outcome.err


@pytest.mark.parametrize("model", ["n" * 300, "zero\0byte"])
def test_a_model_whose_name_cannot_be(compress: Run, text_file: Path, model: str) -> None:
    compress(text_file, "-m", model).failed("model")


def test_a_hub_model_without_network(compress: Run, text_file: Path, out: Path) -> None:
    outcome = compress(text_file, "-q", "-m", "no-such-owner/no-such-model")
    outcome.failed("no-such-owner/no-such-model", "hub", "-m FOLDER")
    assert os.listdir(out) == []


def test_a_model_folder_without_weights(compress: Run, text_file: Path, tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    compress(text_file, "-m", folder).failed(str(folder), "no *.safetensors weights")


def test_a_folder_that_is_no_model(compress: Run, text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "some.gguf").touch()
    compress(text_file, "-m", tmp_path).failed("config.json", str(tmp_path / "some.gguf"))


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["garbage", "half"])
def test_a_damaged_model_folder(compress: Run, text_file: Path, tmp_path: Path, file: str, damage: str) -> None:
    folder = make_model_folder(tmp_path / "model")
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(b"\x01garbage" if damage == "garbage" else data[: len(data) // 2])
    compress(text_file, "-m", folder).failed(str(folder))


def test_a_model_of_an_architecture_that_is_not_supported(compress: Run, text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "model.safetensors").touch()
    compress(text_file, "-m", tmp_path).failed("gpt2", "not supported", "llama")


def test_a_missing_gguf_file(compress: Run, text_file: Path, tmp_path: Path) -> None:
    compress(text_file, "-m", tmp_path / "no.gguf").failed("no such model file", "no.gguf")


@pytest.mark.parametrize("data", [b"", b"GGML", bytes(100), b"GGUF", b"GGUF\x03\0\0\0 and garbage", b"GGUF" * 100])
def test_a_gguf_file_that_is_none(compress: Run, text_file: Path, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    compress(text_file, "-q", "-m", path).failed(str(path))
    kept = [p.name for p in (tmp_path / "kvz-cache").rglob("*") if p.is_file() and p.suffix != ".lock"]
    assert kept == []


def test_a_file_that_is_no_model(compress: Run, text_file: Path) -> None:
    compress(text_file, "-m", text_file).failed(str(text_file), "not a .gguf")


def test_an_output_folder_that_is_not_there(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "-o", out / "no" / "a.kvz").failed(str(out / "no"), "does not exist")
    assert os.listdir(out) == []


def test_an_output_that_is_a_folder(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "-f", "-o", out).failed(str(out), "is a folder")
    assert os.listdir(out) == []


def test_an_output_that_exists(compress: Run, text_file: Path, out: Path) -> None:
    (out / "a.kvz").write_bytes(b"old")
    compress(text_file).failed(f"{out / 'a.kvz'} exists; give --force to replace it\n")
    assert (out / "a.kvz").read_bytes() == b"old"


def test_an_output_name_that_is_too_long(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "-o", out / ("n" * 300)).failed("n" * 300, "cannot be written")
    assert os.listdir(out) == []


def test_an_output_that_is_a_device(compress: Run, text_file: Path, out: Path) -> None:
    os.mkfifo(out / "pipe")
    compress(text_file, "-f", "-o", out / "pipe").failed(str(out / "pipe"), "for a pipe give -o -\n")
    assert (out / "pipe").is_fifo()


def test_an_output_that_is_the_document(compress: Run, text_file: Path) -> None:
    text = text_file.read_bytes()
    compress(text_file, "-f", "-o", text_file).failed(str(text_file), "itself", status=2)
    assert text_file.read_bytes() == text


def test_a_document_that_is_not_there_and_an_output_that_is(compress: Run, tmp_path: Path, out: Path) -> None:
    (out / "a.kvz").write_bytes(b"old")
    compress(tmp_path / "missing.txt", "-f").failed("no such document", "missing.txt")
    assert (out / "a.kvz").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_output_name(compress: Run, text_file: Path, name: str) -> None:
    compress(text_file, "-o", name).failed("-o", status=2)


def test_json_and_an_archive_both_on_stdout(compress: Run, text_file: Path) -> None:
    compress(text_file, "-o", "-", "--json").failed("--json", "-o -", status=2)


def test_a_document_named_like_an_archive_needs_an_output(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "doc.kvz"
    path.write_text("text")
    run("compress", path).failed("-o", status=2)
    assert path.read_text() == "text"


def test_a_disk_that_is_full(compress: Run, text_file: Path, out: Path) -> None:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, old[1]))
    try:
        outcome = compress(text_file, "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    outcome.failed(str(out / "a.kvz"))
    assert os.listdir(out) == []


def test_system_text_that_is_no_text(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "--system", "\udcff").failed("system text", "UTF-8", status=2)
    assert os.listdir(out) == []


@pytest.mark.parametrize("length", [200, 256, 600, 1023, 1024])
def test_one_line_of_text_is_taken_for_text_however_long(tiny_folder: Path, length: int) -> None:
    archive = kvz.compress("a b " * (length // 4), str(tiny_folder), dtype="float32")
    assert archive.manifest.source.bytes == length // 4 * 4


@pytest.mark.parametrize("text", ["missing.txt", "no/such/file", "n" * 300 + ".txt"])
def test_text_that_looks_like_a_missing_file_is_refused(tiny_folder: Path, text: str) -> None:
    with pytest.raises(DocumentError, match="no such document"):
        kvz.compress(text, str(tiny_folder))


def test_offload_without_a_gpu(compress: Run, text_file: Path, out: Path) -> None:
    compress(text_file, "--offload", "--device", "cpu").failed("--offload", "cpu", status=2)
    assert os.listdir(out) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--window", 8), ("'kvzip-rms' does not take window", "snapkv")),
        (("--method", "kvzip", "--turn", 3), ("'kvzip' does not take turn", "kvzip-rms")),
        (("--method", "h2o", "--query", "Who?"), ("'h2o' does not take query",)),
        (("--method", "snapkv", "--query", " "), ("question is empty",)),
        (("--method", "snapkv", "--floor", 0.2), ("'uniform' does not take floor",)),
        (("--method", "full", "-r", 0.5), ("keeps every pair",)),
        (("--method", "full", "--protect", "0:3"), ("keeps every pair",)),
        (("--method", ""), ("no method ''",)),
        (("--method", "snapkv", "--budget", 3), ("budget 3 is too small", "the least is 32;")),
        (("--turn", 1e200), ("turn 1e+200",)),
        (("--method", "recent", "--sink", -1), ("sink of -1",)),
        (("--method", "random", "--seed", 2**63), ("seed", "2^63 - 1")),
        (("--protect", "all"), ("'all' is no span",)),
        (("--protect", "900:"), ("900:", "206 tokens")),
        (("--protect-text", "Oslo"), ("does not contain", "Oslo")),
        (("--protect-text", ""), ("text to protect is empty",)),
        (("--protect", "0:100", "-r", 0.2), ("at least 100 of the document's 206 tokens",)),
    ],
)
def test_options_that_do_not_fit(compress: Run, text_file: Path, out: Path, options, words) -> None:
    status = 1 if "question is empty" in words else 2
    compress(text_file, *options).failed(*words, status=status)
    assert os.listdir(out) == []
