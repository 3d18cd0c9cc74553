"""`deepnmt.translate_file`: translate text from file to file or through pipes."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.jobs import ResumableFile, chunk_lines, count_lines, file_chunks, fingerprint, pipe_chunks
from deepnmt.decoding.lines import LineWarnings, decoded, one_line
from deepnmt.decoding.translator import Hypothesis, Translator
from deepnmt.errors import InputError
from deepnmt.progress import progress, say
from deepnmt.settings import from_table


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
    prefixes: str | Path | None = None,
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
    """Translate a text file (plain, .gz, .xz, .bz2, .zst) with a MODEL or an ensemble; return the number of lines.

    `source` and `out` default to standard input and output, like "-". An output file appears when it is complete; after
    an interruption the same call resumes. `prefixes` is a file of forced beginnings, one per line. `scores` adds a
    column, `as_json` writes one object per line. `settings` are the fields of `TranslationConfig`: with `nbest` the
    output is line number, score and text; with `alignments` the last column has word links. `chunk` lines are sorted by
    length and translated together. `shortlist` uses the model's lexical shortlist. `source_lang` and `target_lang` are
    for multilingual models.
    """
    from_table(TranslationConfig, settings)
    given, target = (None if path is None or str(path) == "-" else Path(path) for path in (source, out))
    folders = [Path(folder) for folder in ([model] if isinstance(model, str | Path) else model)]
    files = [Path(path) for path in (given, prefixes) if path is not None]
    for path in files:
        if not path.is_file():  # it is read more than once
            raise InputError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
        if target is not None and target.exists() and target.samefile(path):
            raise InputError(f"{path} is an input: name another file for the output")
    if given and prefixes and (counts := [count_lines(path) for path in files])[0] != counts[1]:
        raise InputError(f"{prefixes} has {counts[1]:,} lines but {given} has {counts[0]:,}; it needs one for each")
    translator = Translator(folders, device, precision, shortlist).for_languages(source_lang, target_lang)
    size = chunk_lines(chunk, translator.device.type)
    form = LineFormat(
        number="nbest" in settings, scores=scores, alignments=settings.get("alignments", False), as_json=as_json
    )
    job = {**settings, **asdict(form), "precision": precision, "shortlist": shortlist, "device": device, "chunk": size}
    job |= {"languages": [source_lang, target_lang]}
    job = {"pipe": time.time()} if given is None else fingerprint(folders, files, job)
    destination: AbstractContextManager[ResumableFile | _StandardOutput] = nullcontext(_StandardOutput())
    if target is not None:
        destination = ResumableFile(target, job, is_resumable=given is not None)
    with destination as opened:
        done = opened.lines
        if done:
            say(f"resuming after line {done:,} of {given}")
        name, chunks, total = "standard input", pipe_chunks(sys.stdin.buffer, size), None
        if given is not None:
            name, chunks, total = str(given), file_chunks(given, size, done), count_lines(given)
        left = None if total is None else max(total - done, 0)
        lines = _numbered(chunks, done)
        return translate_chunks(translator, name, lines, opened, form, prefixes=prefixes, total=left, **settings)


class _StandardOutput:
    lines = 0

    def append(self, text: bytes, lines: int) -> None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


def _numbered(chunks: Iterable[list[bytes]], first: int) -> Iterator[tuple[int, list[bytes]]]:
    for chunk in chunks:
        yield first, chunk
        first += len(chunk)


def translate_chunks(
    translator: Translator,
    name: str,
    chunks: Iterable[tuple[int, list[bytes]]],
    destination: ResumableFile | _StandardOutput,
    form: LineFormat = LineFormat(),
    *,
    title: str = "translate",
    prefixes: str | Path | None = None,
    total: int | None = None,
    **settings: Any,
) -> int:
    """Translate chunks of the text `name`, each with the number of preceding lines; return the number of lines."""
    warnings, done, beginnings = LineWarnings(name), destination.lines, None
    if prefixes is not None:
        beginnings = file_chunks(Path(prefixes), 1, done)
    with progress(title, total=total, unit="lines") as shown:
        for first, chunk in chunks:
            warn = warnings.after(first)
            texts = decoded(chunk, warn)
            forced = None
            if beginnings is not None:
                forced = [line.decode(errors="replace") for _ in texts for line in next(beginnings, [])]
                if len(forced) < len(texts):
                    raise InputError(f"{prefixes} has only {first + len(forced):,} lines, fewer than the input")
            found = translator.translate_nbest(texts, prefixes=forced, warn=warn, done=shown.advance, **settings)
            shown.advance(sum(1 for text in texts if not text.strip()))
            done = first + len(texts)
            rows = zip(range(first + 1, done + 1), texts, found, strict=True)
            lines = (line for row in rows for line in form.lines(*row))
            destination.append("".join(f"{line}\n" for line in lines).encode(), len(texts))
    warnings.summarise()
    return done
