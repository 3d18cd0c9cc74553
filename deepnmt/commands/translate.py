"""`deepnmt translate`: raw text in, raw text out, through pipes or from file to file."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepnmt.commands.options import add_translation_options, settings_of
from deepnmt.decoding.lines import LineWarnings, decoded, one_line
from deepnmt.devices import limit_shape_caches, use_threads
from deepnmt.errors import InputError
from deepnmt.progress import say

if TYPE_CHECKING:
    from deepnmt.decoding.translator import Hypothesis, Translator

EXAMPLE = """deepnmt translate MODEL < news.en > news.de
  deepnmt translate MODEL --input news.en.gz --output news.de          run again, it resumes
  deepnmt translate MODEL1 MODEL2 --input news.en --nbest 4 --json     an ensemble, the four best with scores"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="+", type=Path, metavar="MODEL", help="a model folder; several are an ensemble")
    parser.add_argument("--input", type=_path, metavar="F", help="one sentence per line (default: standard input)")
    parser.add_argument("--output", type=_path, metavar="F", help="file to write (default: standard output)")
    output = parser.add_argument_group("output (one line per input line, unless --nbest)")
    output.add_argument("--scores", action="store_true", help="write the score and a tab before each translation")
    output.add_argument(
        "--alignments", action="store_true", help="write a tab and links 0-0 1-2 (source-target words) after it"
    )
    output.add_argument(
        "--nbest", type=int, default=argparse.SUPPRESS, metavar="N", help="N lines each: line number, score, text"
    )
    output.add_argument("--json", action="store_true", help="write one JSON object per line, with all of these")
    parser.add_argument(
        "--prefixes", type=Path, metavar="F", help="forced beginnings of the translations, one per line"
    )
    add_translation_options(parser)
    parser.add_argument("--chunk", type=int, metavar="N", help="lines sorted by length and translated together")


def _path(text: str) -> Path | None:
    return None if text == "-" else Path(text)


def load_translator(arguments: argparse.Namespace, device: str | None = None) -> "Translator":
    from deepnmt.decoding.translator import Translator

    for folder in arguments.model:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a MODEL folder")
    use_threads(arguments.threads)
    return Translator(arguments.model, device=device or arguments.device, precision=arguments.precision)


def run(arguments: argparse.Namespace) -> None:
    limit_shape_caches()
    from deepnmt.decoding.jobs import chunk_lines, file_chunks, pipe_chunks
    from deepnmt.progress import progress

    _check_files(arguments)
    settings = settings_of(arguments)
    translator = load_translator(arguments)
    size = chunk_lines(arguments.chunk, translator.device.type)
    with _Destination(arguments, settings, size) as destination:
        done = destination.lines
        if done:
            say(f"going on after line {done:,} of {arguments.input}")
        chunks = file_chunks(arguments.input, size, done) if arguments.input else pipe_chunks(sys.stdin.buffer, size)
        warnings = LineWarnings(str(arguments.input or "standard input"))
        formatted = formatter(arguments)
        with progress("translate", total=_total(arguments, done), unit="lines") as shown:
            for texts, prefixes, first in _numbered(chunks, _prefix_chunks(arguments, done), done, warnings):
                hypotheses = translator.translate_nbest(
                    texts, prefixes=prefixes, warn=warnings.after(first), done=shown.advance, **settings
                )
                shown.advance(sum(1 for text in texts if not text.strip()))
                lines = (
                    line
                    for number, (text, found) in enumerate(zip(texts, hypotheses, strict=True), start=first + 1)
                    for line in formatted(number, text, found)
                )
                destination.write("".join(f"{line}\n" for line in lines).encode(), len(texts))
        warnings.summarise()


def _check_files(arguments: argparse.Namespace) -> None:
    for path in (arguments.input, arguments.prefixes):
        if path is not None and not path.is_file():
            raise InputError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    if (
        arguments.input
        and arguments.output
        and arguments.output.exists()
        and arguments.output.samefile(arguments.input)
    ):
        raise InputError(f"{arguments.output} is the input: name another file for the output")


def _numbered(
    chunks: Iterable[list[bytes]], prefixes: Iterator[list[bytes]] | None, first: int, warnings: LineWarnings
) -> Iterator[tuple[list[str], list[str] | None, int]]:
    """Texts, prefixes and the number of lines before them."""
    for chunk in chunks:
        forced = None
        if prefixes is not None:
            forced = [line.decode(errors="replace") for line in _take(prefixes, len(chunk))]
            if len(forced) < len(chunk):
                raise InputError(f"--prefixes has fewer lines than the input: {first + len(forced):,}")
        yield decoded(chunk, warnings.after(first)), forced, first
        first += len(chunk)


def _take(chunks: Iterator[list[bytes]], count: int) -> list[bytes]:
    return [line for _ in range(count) for line in next(chunks, [])]


def _prefix_chunks(arguments: argparse.Namespace, skip: int) -> Iterator[list[bytes]] | None:
    from deepnmt.decoding.jobs import file_chunks

    return file_chunks(arguments.prefixes, 1, skip) if arguments.prefixes else None


def _total(arguments: argparse.Namespace, done: int) -> int | None:
    from deepnmt.decoding.jobs import count_lines

    lines = count_lines(arguments.input) if arguments.input else None
    return None if lines is None else max(lines - done, 0)


class _Destination:
    """Standard output, or a file that appears when it is complete; from file to file the job can be continued."""

    def __init__(self, arguments: argparse.Namespace, settings: dict[str, Any], size: int) -> None:
        from deepnmt.decoding.jobs import ResumableFile, fingerprint

        self.lines = 0
        self._file: ResumableFile | None = None
        if arguments.output is None:
            return
        shape = {name: getattr(arguments, name) for name in ("scores", "alignments", "json", "precision", "device")}
        prefixes = str(arguments.prefixes) if arguments.prefixes else None
        if arguments.input:
            job = fingerprint(
                arguments.model, arguments.input, {**settings, **shape, "chunk": size, "prefixes": prefixes}
            )
        else:
            job = {"pipe": time.time()}  # never again
        self._file = ResumableFile(arguments.output, job)
        self.lines = self._file.lines
        self._keep = arguments.input is not None

    def __enter__(self) -> "_Destination":
        return self

    def write(self, text: bytes, lines: int) -> None:
        if self._file is not None:
            self._file.append(text, lines)
        else:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._file is not None:
            self._file.finish() if kind is None else self._file.close(self._keep)


def formatter(arguments: argparse.Namespace) -> "Callable[[int, str, list[Hypothesis]], list[str]]":
    """The lines that are written for a line: its number from one, its text and the hypotheses."""
    if arguments.json:
        return _json_line

    def columns(number: int, hypothesis: "Hypothesis") -> str:
        fields = [str(number)] if "nbest" in arguments else []
        if "nbest" in arguments or arguments.scores:
            fields.append(f"{hypothesis.score:.4f}")
        fields.append(one_line(hypothesis.text))
        if arguments.alignments:
            links = hypothesis.alignment.links if hypothesis.alignment else []
            fields.append(" ".join(f"{source}-{target}" for source, target in links))
        return "\t".join(fields)

    return lambda number, text, found: [columns(number, hypothesis) for hypothesis in found]


def _json_line(number: int, text: str, found: "list[Hypothesis]") -> list[str]:
    from dataclasses import asdict

    def table(hypothesis: "Hypothesis") -> dict[str, Any]:
        row = asdict(hypothesis)
        if hypothesis.alignment is None:
            del row["alignment"]
        else:
            row["alignment"]["links"] = hypothesis.alignment.links
            row["alignment"]["weights"] = [[round(w, 4) for w in line] for line in hypothesis.alignment.weights]
        return row

    content = {"line": number, "source": text, "hypotheses": [table(hypothesis) for hypothesis in found]}
    return [json.dumps(content, ensure_ascii=False)]
