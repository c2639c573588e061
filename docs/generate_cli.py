"""Writes docs/cli.md: the prose below, and the help of each command as the command itself prints it.

Run by scripts/docs. With --check nothing is written, and the exit status is 1 if docs/cli.md is out of date.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

from kvz.cli.main import make_app, run

__all__ = ["TARGET", "commands", "main", "render"]

TARGET = Path(__file__).with_name("cli.md")

_INTRODUCTION = """\
# The command line

## Conventions

**Streams.** Answers, and what else a command is asked for, go to stdout and nothing else does. Progress, statistics,
warnings and errors go to stderr; progress bars are drawn only on a terminal. With `-q` nothing but errors goes to
stderr. Text on stdout is never wrapped or coloured.

**`-` is standard input or output:** `kvz compress -` reads the document from stdin, `-o -` writes the archive to
stdout, `kvz ask ARCHIVE --questions -` reads questions from stdin. An archive to be read has to be a file.

**`--json`** prints one JSON object a line on stdout, in UTF-8. Fields may be added in later versions.

**Exit status:**

| status | meaning |
|---|---|
| 0 | done |
| 1 | failed: a document, archive, model or question cannot be used, or output cannot be written |
| 2 | wrong usage: an option that does not exist, is out of range or cannot apply |
| 130 | interrupted by Ctrl-C or SIGTERM |

On failure one line on stderr, beginning with `kvz:`, says what is wrong and what to do about it. `--debug`, before or
after the command, shows the traceback as well. Nothing half-written is left behind.

**Models.** `-m` takes a hub id (`org/name`, or `org/name@revision`), a folder with `config.json` and `*.safetensors`,
or a `.gguf` file. Without it `compress` uses the embedded model, `smollm2-135m-instruct`, and `ask` the model that the
archive names. What has been fetched or converted is kept in the user's cache folder, or in the folder that the
environment variable `KVZ_CACHE` names; the hub's own cache is used for hub ids.
"""

_PROSE = {
    "compress": """\
Reads a document, keeps the share `-r` of its key/value pairs (0.3 unless given, or the least that can be kept where
that is more; or `--budget` pairs a head), and writes an archive. The default output is DOC with the suffix `.kvz`, in
the folder of DOC; a document from stdin needs `-o`. An existing archive is replaced only with `-f`. The archive appears
under its name when it is complete, or not at all.

The document is UTF-8 text of at most 256 MiB, in which the line ends CR LF and CR are read as LF; `--keep-newlines`
keeps them, as tokens of their own. PDF, ZIP (docx, epub), gzip, UTF-16 and binary files are refused. One that is too
long for the model is refused too, unless `--truncate` says which part to leave out; then 512 positions, or an eighth of
the model's if that is less, are left for question and answer. The archive is in the dtype that the model runs in: with
`--dtype auto`, bfloat16.

A summary goes to stderr. `--json` prints it as one object (and cannot be combined with `-o -`):

| field | meaning |
|---|---|
| `archive` | file written, `-` for stdout |
| `document` | name of the document, `-` for stdin |
| `model`, `dtype` | id of the model, and dtype of the pairs |
| `context_tokens`, `prefix_tokens` | tokens of the document, and of the chat template before it |
| `dropped_tokens`, `truncated` | tokens left out, and the part they were: `head`, `middle`, `tail` or null |
| `newlines_replaced` | line ends CR LF and CR of the document that were read as LF |
| `dropped_estimated` | whether that number is an estimate: of a huge document only what is needed is encoded |
| `pairs_kept`, `pairs_total` | pairs of the document kept, and of how many |
| `kv_bytes_full`, `kv_bytes_kept` | bytes of the cache before and after, prefix included |
| `file_bytes` | size of the archive |
| `seconds` | wall time of each phase: `load`, `prefill`, `score`, `evict`, `write` |
""",
    "ask": """\
Answers questions from an archive. Each starts from the archive alone: neither the order of the questions nor earlier
answers change anything. Questions are arguments, or come from `--questions`: one a line, blank lines skipped; or, if
the first of them begins with `{`, one JSON object a line with the string `question` and perhaps an `id`, a string or
integer; any other is refused. Without an id questions are numbered from 1, and a number that is the id of another
question is refused. Other fields are ignored. A line ends at LF, CR LF or CR. A file is read as a whole before the
first answer; from a pipe each question is answered as it comes, however many follow (with `--batch-size N`, as soon as
N have come), and a line that cannot be used ends the command when it is reached.

The answer is written to stdout as it is generated, and ends with a line break. Statistics follow on stderr; with
several questions each one is shown there before its answer. A question that cannot be asked (empty, or too long) is
reported and the others are answered all the same; the exit status is then 1.

The model must be the one that the archive was made with, which is checked by fingerprints, whether it comes from the
archive or from `-m`. `--top-p`, `--top-k` and `--seed` need a `--temperature` above 0. `--no-verify` skips the
checksums of the tensors, not that of the header.

`--turns FILE` takes the same kinds of file as `--questions`, and asks them as one conversation: each turn sees those
before it, as in [chat](#kvz-chat).

`--batch-size N` answers N questions side by side: the archive's pairs are read once for all of them, and a step of the
model costs little more for 16 questions than for one. Answers come in the order of the questions, each when it and
all before it are complete, not as they are written. In float32 they are those of one at a time but for ties within
rounding; in bfloat16 roundings differ, and now and then a word. With `auto` there are as many as there are questions,
16 at most; one that memory has no room for waits until another has its answer. With a `--budget` and `--policy auto` a
batch reads the archive densely where that is less.

`--budget N` lets a token of an answer read N pairs of each head, chosen by `--policy`: see
[sparse decoding](methods.md#sparse-decoding). Answers may suffer.

`--json` prints one object a question:

| field | meaning |
|---|---|
| `id`, `question` | id and text of the question |
| `answer` | the answer |
| `stop` | why it ended: `end` (the model ended it), `length` (`--max-new-tokens`) or `full` (no position left) |
| `context_tokens` | tokens reused from the archive, prefix included, evicted or not |
| `question_tokens`, `new_tokens` | tokens of the question with its part of the template, and of the answer |
| `first_token_seconds`, `token_seconds` | time to the first token, and for one after it (median; null if none) |
| `kv_bytes` | bytes of the archive's cache and of the question's own, while answering |
| `policy` | how the answer's tokens read the archive |
| `pairs_read` | pairs that each of them read, over all heads, prefix and paid choosing included (null without any) |
| `error` | in place of all fields but the first two: why the question could not be answered |
""",
    "chat": """\
A conversation about an archive: each turn sees the turns before it, which stay in memory beside the archive; that
itself is never changed. In a terminal there are line editing and a history, Ctrl-C stops a command or an answer (what
was said stays said), an answer that fails ends only itself, and Ctrl-D ends. From a pipe each line is a turn, and blank
lines are skipped; if a turn could not be asked, or a command failed, the exit status is 1. Lines that begin with `/`
are commands; to ask such a line, begin it with a space:

| command | effect |
|---|---|
| `/reset` | forget the turns so far |
| `/stats` | turns, tokens, positions left, bytes, and how the archive is read |
| `/budget N`, `/budget off` | read N pairs of each head for a token of an answer, or all of them |
| `/save FILE` | write the turns as JSON lines with `question` and `answer`; `kvz ask --turns` takes the file |
| `/save! FILE` | the same, in the place of a file that is there |
| `/help`, `/quit` | list the commands; end |

Options and the objects of `--json`, one a turn, are those of [ask](#kvz-ask).
""",
    "inspect": """\
Reads the header alone, so it is quick however large the archive is, and needs no model. The header's checksum is
checked, those of the tensors are not (see [verify](#kvz-verify)).

`--html FILE` reads the whole archive, checks it, and writes one page that works offline: the same facts, the share kept
of each layer and head as a heat map, how many heads kept a token, and the document's text shaded by it. The text is
decoded with the tokenizer of the model in the archive; where the archive has no token ids (`--omit-text`) or the model
is not on this machine, tokens are dots and the page says why. Nothing is fetched, unless `-m` names it. A page with the
text holds the document, as the archive does. It shows 4,000,000 tokens at most.

`-v` shows the text before the document as well, control tokens included: what the chat template puts there, the system
text, and the date of compressing where a template writes one. A long one is cut in the middle, but not in `--json`.

`--json` prints one object:

| field | meaning |
|---|---|
| `archive`, `file_bytes` | the file and its size |
| `format_version` | version of the [format](format.md) |
| `bytes` | bytes of each kind of tensor, of `padding` and of the `header` |
| `manifest` | the [manifest](format.md#manifest) |
| `prefix` | with `-v`, the text before the document, or null where it cannot be shown |
""",
    "verify": """\
Checks everything that can be checked without a model: the header and its checksum, the manifest, every tensor's
checksum, offsets, positions, padding, and that the indexes follow from the keys. With `-m`, also that the model, its
tokenizer and its chat template are those that the archive was made with, and that the model knows the token ids. A
sound archive gives a line on stdout and status 0; any other gives an error and status 1.

`--json` prints one object for a sound archive, and none for another:

| field | meaning |
|---|---|
| `archive` | the file |
| `ok` | true |
| `tensors`, `bytes` | number of tensors and bytes checked |
| `model` | the model compared with, or null |
""",
    "bench": """\
Compares methods with the full cache on tasks; [benchmarks](benchmarks.md) explains tasks, measures and protocols.
Without `--task` it is a quick run: needles in about 1,000 tokens of text, one a context and five. The full cache is
always measured, and once more with keys and values expanded to every query head (`full@repeat-kv`), a baseline for
speed.

The table goes to stdout, progress to stderr, and everything into the folder of `--out`, by default a new one in the
current folder. A run that was interrupted goes on when it is started again with the same options and the same `--out`;
with other options it is refused, unless `-f` starts anew. Cells that cannot be measured are listed with the reason. One
that fails is recorded, the others go on, and the exit status is 1.

`kvz bench report RUN...` shows runs again, several side by side; it writes the report into the folder of `--out`, or,
for one run, into its own. It takes `--out`, `--json` and `-q` only.

`--dry-run` lists the cells, with seconds estimated from the size of the model and the speed of the machine; `--json`
prints them as objects with `estimated_seconds`, `contexts`, and `skipped` (null or why).

`--json` prints one object a cell, as it is measured; the same lines are in `cells.jsonl`:

| field | meaning |
|---|---|
| `task`, `length`, `protocol`, `method` | which cell: the length is in tokens, as asked for |
| `ratio`, `budget` | share kept; pairs a head that a step reads, or that are kept; null where the method has none |
| `score`, `score_low`, `score_high` | mean over contexts, and its 95 % interval (missing where there is one value) |
| `agreement`, `kl` | share of tokens that the full cache chooses too, and divergence from it in nats a token |
| `read_share` | share of the full cache's pairs that a token of an answer attends; null in runs of earlier versions |
| `kv_bytes`, `step_bytes` | bytes in memory of the archive and what is chosen by; those that a step reads |
| `floor_seconds` | time to read those bytes and the weights at the machine's measured bandwidth |
| `peak_bytes` | most memory that the method takes, weights not counted; null where the system does not say |
| `seconds` | `prefill`, `score`, `write`, `load`, `first_token`, and `token`: each one after it |
| `contexts`, `questions`, `new_tokens` | how many there were, and the mean length of an answer |
| `policy` | how the tokens of answers read the archive |
| `facts` | of needles: `depth`, `length` and `score` of each |
| `note` | what is to be said of the cell, such as that its budget covers the archive |
| `skipped`, `error` | in place of all fields from `score` on: why it cannot be measured, or what went wrong |
| `run` | with `report` and several runs: which of them |
""",
    "calibrate": """\
Scores the KV heads of a model over one long text: see [methods](methods.md#head-level-methods). Scores that are there
already, computed before or shipped with kvz, are left as they are, unless `--again` or `--text` asks for new ones.
`--import` takes them from a file in place of computing them: a `.safetensors` or `.tsv` file as `--export` writes it,
or a table of DuoAttention's (`.tsv`). `-f` lets `--export` replace a file.

`--json` prints one object:

| field | meaning |
|---|---|
| `model`, `fingerprint` | the model, and what its scores are stored under |
| `kind` | `kvzip` for computed scores, `duoattention` for an imported table |
| `stored`, `exported` | the file in the cache folder, and the one written by `--export`; null if there is none |
| `scores` | a row of numbers for each layer; null where a layer has no pairs to evict |
""",
    "models": """\
`--fetch` fetches and converts the embedded model, after which `compress` and `ask` need no network for it.

`--json` prints one object a model:

| field | meaning |
|---|---|
| `model` | what to give to `-m`; of a converted `.gguf` file, only its name without the suffix |
| `kind` | `embedded default`, `gguf` or `hub` |
| `cached` | whether it is there |
| `bytes`, `folder` | its size, 0 if it is not there, and where it lies |
""",
}


def commands() -> list[str]:
    """Names of the commands, in the order of the help."""
    return [str(command.callback.__name__) for command in make_app().registered_commands if command.callback]


def render() -> str:
    """The text of docs/cli.md. Raises KeyError for a command without prose."""
    notice = f"<!-- Written by scripts/docs with typer {version('typer')}; edit docs/generate_cli.py instead. -->\n"
    parts = [notice, _INTRODUCTION, "## kvz\n", _help()]
    for name in commands():
        parts += [f"## kvz {name}\n", _PROSE[name], _help(name)]
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write docs/cli.md, or with --check compare it; returns the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: scripts/docs [--check]\n")
        return 2
    text = render()
    if not arguments:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != text:
        sys.stderr.write("docs/cli.md is out of date: run scripts/docs\n")
        return 1
    return 0


def _help(*command: str) -> str:
    """A command's help, as a terminal of 100 columns shows it, in a code block."""
    with redirect_stdout(io.StringIO()) as out, patch.dict(os.environ, COLUMNS="100"):
        status = run([*command, "--help"])
    assert status == 0
    return f"```console\n$ {' '.join(['kvz', *command, '--help'])}\n{out.getvalue().rstrip()}\n```\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
