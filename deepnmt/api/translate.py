"""`deepnmt.translate_file` and `translate_document`: lines of text and documents, in files, pipes and memory."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.documents.formats import LINES, check_format, format_of, read_document
from deepnmt.decoding.documents.translation import restored, sentences_of, stored, translated, translations, written
from deepnmt.decoding.glossary import Glossary, read_terms
from deepnmt.decoding.jobs import ResumableFile, chunk_lines, count_lines, file_chunks, fingerprint, pipe_chunks
from deepnmt.decoding.lines import LineWarnings, decoded, one_line
from deepnmt.decoding.translator import Hypothesis, Translator, default_settings, in_processes
from deepnmt.errors import InputError
from deepnmt.progress import progress, say
from deepnmt.settings import from_table
from deepnmt.text import iterate_lines, read_all


@dataclass(frozen=True, kw_only=True)
class LineFormat:
    """The output for a line: its translation or n best, optionally with scores and alignments."""

    number: bool = False  # n best: the number of the line first
    scores: bool = False
    alignments: bool = False
    as_json: bool = False

    def lines(self, number: int, text: str, found: list[Hypothesis]) -> list[str]:
        if self.as_json:
            content = {"line": number, "source": text, "hypotheses": [_table(hypothesis) for hypothesis in found]}
            return [json.dumps(content, ensure_ascii=False)]
        return ["\t".join(self._columns(number, hypothesis)) for hypothesis in found]

    def _columns(self, number: int, hypothesis: Hypothesis) -> Iterator[str]:
        if self.number:
            yield str(number)
        if self.number or self.scores:
            yield f"{hypothesis.score:.4f}"
        yield one_line(hypothesis.text)
        if self.alignments:
            links = hypothesis.alignment.links if hypothesis.alignment else []
            yield " ".join(f"{source}-{target}" for source, target in links)


# The number of a line from 1, its text and its hypotheses, to the lines of its output.
LinesOf = Callable[[int, str, list[Hypothesis]], list[str]]
PLAIN: LinesOf = LineFormat().lines


def _table(hypothesis: Hypothesis) -> dict[str, Any]:
    row = asdict(hypothesis)
    if hypothesis.alignment is None:
        del row["alignment"]
    else:
        row["alignment"]["links"] = hypothesis.alignment.links
        row["alignment"]["weights"] = hypothesis.alignment.weights.astype(float).round(4).tolist()
    return row


def translate_file(
    model: str | Path | Sequence[str | Path],
    source: str | Path | None = None,
    out: str | Path | None = None,
    *,
    file_format: str | None = None,
    prefixes: str | Path | None = None,
    terms: str | Path | None = None,
    scores: bool = False,
    as_json: bool = False,
    chunk: int | None = None,
    device: str | None = None,
    precision: str = "fp32",
    shortlist: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **settings: Any,
) -> int:
    """Translate a file (plain, .gz, .xz, .bz2, .zst) with a MODEL or an ensemble; return the number of lines.

    `source` and `out` default to standard input and output, like "-". `file_format` is that of the source: `lines`
    of text, or a document (html, markdown, po, srt, vtt, xliff, text), of which the sentences are counted; by
    default, the ending of the file decides. An output file appears when it is complete; after an interruption the
    same call resumes. `prefixes` is a file of forced beginnings, one per line; `terms` a glossary, lines of a
    source term, a tab and its translation. `scores` adds a column, `as_json` writes one object per line. `settings`
    are the fields of `TranslationConfig`: with `nbest` the output is line number, score and text; with `alignments`
    the last column has word links. `chunk` lines are sorted by length and translated together. `shortlist` uses the
    model's lexical shortlist. `source_lang` and `target_lang` are for multilingual models; `device` and `precision`
    are those of `Translator`.
    """
    given, target = (None if path is None or str(path) == "-" else Path(path) for path in (source, out))
    kind = format_of(given) if file_format is None else check_format(file_format)
    folders = [Path(folder) for folder in ([model] if isinstance(model, str | Path) else model)]
    files = [Path(path) for path in (given, prefixes, terms) if path is not None]
    _check_files(files, target)
    form = LineFormat(
        number="nbest" in settings, scores=scores, alignments=settings.get("alignments", False), as_json=as_json
    )
    if kind == LINES:
        _check_line_counts(given, prefixes)
    else:
        _check_document_options(kind, form, prefixes, chunk)
        text = read_all(given or "-")
    wanted = read_terms(terms) if terms else {}
    if folders:
        from_table(TranslationConfig, default_settings(folders[0]) | settings)
    translator = Translator(folders, device, precision, shortlist).for_languages(source_lang, target_lang)
    glossary = translator.glossary(wanted) if wanted else None
    size = chunk_lines(chunk, translator.device.type)
    options = {**settings, **asdict(form), "precision": precision, "shortlist": shortlist, "device": device}
    options |= {"chunk": size, "languages": [source_lang, target_lang], "format": kind}
    is_resumable = given is not None and target is not None
    job = fingerprint(folders, files, options) if is_resumable else None
    if kind != LINES:
        return _translate_document(translator, text, kind, given, target, job, glossary, settings)
    with _opened(target, job) as destination:
        name, chunks, left = _chunks(given, size, destination.lines)
        return translate_chunks(
            translator, name, chunks, destination, form.lines, prefixes=prefixes, terms=glossary, total=left, **settings
        )


def _chunks(given: Path | None, size: int, done: int) -> tuple[str, Iterable[tuple[int, list[bytes]]], int | None]:
    """The name of the input, its lines after those that are done, and their number if it is known."""
    if given is None:
        return "standard input", pipe_chunks(sys.stdin.buffer, size), None
    if done:
        say(f"resuming after line {done:,} of {given}")
    return str(given), file_chunks(given, size, done), count_lines(given) - done


def _check_line_counts(given: Path | None, prefixes: str | Path | None) -> None:
    if given is not None and prefixes is not None:
        lines, forced = count_lines(given), count_lines(Path(prefixes))
        if lines != forced:
            raise InputError(f"{prefixes} has {forced:,} lines but {given} has {lines:,}; it needs one for each")


def _check_files(files: Sequence[Path], target: Path | None) -> None:
    for path in files:
        if not path.is_file():  # it is read more than once
            reason = "is not a file; for a pipe, use standard input" if path.exists() else "does not exist"
            raise InputError(f"{path} {reason}")
        if target is not None and target.exists() and target.samefile(path):
            raise InputError(f"{path} is an input: name another file for the output")


def _check_document_options(kind: str, form: LineFormat, prefixes: str | Path | None, chunk: int | None) -> None:
    options = {
        "n-best lists": form.number,
        "scores": form.scores,
        "alignments": form.alignments,
        "JSON lines": form.as_json,
    }
    options |= {"prefixes": prefixes is not None, "chunks": chunk is not None}
    for name, is_given in options.items():
        if is_given:
            raise InputError(
                f"{name} are for lines of text, not for {kind}: omit the option, or choose the format lines"
            )


def _translate_document(
    translator: Translator,
    text: str,
    kind: str,
    given: Path | None,
    target: Path | None,
    job: dict[str, Any] | None,
    terms: Glossary | None,
    settings: dict[str, Any],
) -> int:
    name = str(given or "standard input")
    try:
        document = read_document(text, kind, translator.tokenizers[0].target.language)
    except InputError as error:
        raise InputError(f"{name}, {error}") from error
    sentences = sentences_of(document)
    warnings = LineWarnings(name)
    with _opened(target, job) as destination:
        found = restored(destination.resumed())
        if found:
            say(f"resuming: {len(found):,} of {len(sentences):,} sentences of {name} are translated")
        left = {text: aligned for text, aligned in sentences.items() if text not in found}
        with progress("translate", total=len(left), unit="sentences") as shown, in_processes(translator):
            for some in translations(left, translator, terms, warnings.about, shown.advance, **settings):
                found |= some
                if isinstance(destination, ResumableFile):
                    destination.append(stored(some), len(some))
        destination.finish(written(document, found).encode())
    warnings.summarise()
    return len(sentences)


def translate_document(
    translator: Translator,
    document: str,
    file_format: str,
    *,
    terms: Mapping[str, str] | Glossary | None = None,
    **settings: Any,
) -> str:
    """Translate a `document` with a `translator`; everything but its text is kept.

    `file_format` is html, markdown, po, srt, vtt, xliff or text.
    `terms` and `settings` are those of `Translator.translate`; placeholders and URLs are kept by default.
    """
    language = translator.tokenizers[0].target.language
    return translated(read_document(document, file_format, language), translator, terms, **settings)


class _Stream:
    """Standard output, a named pipe or a device: chunks are written as they come."""

    lines = 0

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def append(self, text: bytes, lines: int) -> None:
        self.file.flush()
        if hasattr(self.file, "buffer"):
            self.file.buffer.write(text)
        else:  # in a notebook
            self.file.write(text.decode())
        self.file.flush()

    def resumed(self) -> tuple[()]:
        return ()

    def finish(self, text: bytes) -> None:
        self.append(text, 0)


@contextmanager
def _opened(path: Path | None, job: dict[str, Any] | None) -> Iterator[ResumableFile | _Stream]:
    if path is None:
        yield _Stream(sys.stdout)
    elif path.exists() and not (path.is_file() or path.is_dir()):
        try:
            with path.open("w") as file:
                yield _Stream(file)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
    else:
        with ResumableFile(path, job) as resumable:
            yield resumable


def translate_chunks(
    translator: Translator,
    name: str,
    chunks: Iterable[tuple[int, list[bytes]]],
    destination: ResumableFile | _Stream,
    lines_of: LinesOf = PLAIN,
    *,
    title: str = "translate",
    prefixes: str | Path | None = None,
    terms: Glossary | None = None,
    total: int | None = None,
    **settings: Any,
) -> int:
    """Translate chunks of the text `name`, each with the number of preceding lines; return the number of lines."""
    warnings, done = LineWarnings(name), destination.lines
    beginnings = None if prefixes is None else islice(iterate_lines(Path(prefixes)), done, None)
    with progress(title, total=total, unit="lines") as shown, in_processes(translator):
        for first, chunk in chunks:
            warn = warnings.after(first)
            texts = decoded(chunk, warn)
            forced = None
            if beginnings is not None:
                forced = [line.decode(errors="replace") for line in islice(beginnings, len(texts))]
                if len(forced) < len(texts):
                    raise InputError(f"{prefixes} has only {first + len(forced):,} lines, fewer than the input")
            before = shown.done
            found = translator.translate_nbest(
                texts, prefixes=forced, terms=terms, warn=warn, done=shown.advance, **settings
            )
            shown.advance(before + len(texts) - shown.done)  # empty lines
            done = first + len(texts)
            rows = zip(range(first + 1, done + 1), texts, found, strict=True)
            lines = (line for row in rows for line in lines_of(*row))
            destination.append("".join(f"{line}\n" for line in lines).encode(), len(texts))
    if beginnings is not None and next(beginnings, None) is not None:
        raise InputError(f"{prefixes} has more lines than the input ({done:,}); it needs one for each")
    warnings.summarise()
    return done
