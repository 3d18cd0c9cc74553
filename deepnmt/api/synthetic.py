"""`deepnmt.backtranslate` and `deepnmt.distill`: synthetic parallel text, one side of which a model has written."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from deepnmt.api.translate import PLAIN, LinesOf, translate_chunks
from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.jobs import ResumableFile, chunk_lines, count_lines, file_chunks, fingerprint
from deepnmt.decoding.lines import one_line
from deepnmt.decoding.translator import Hypothesis, Translator, default_settings
from deepnmt.devices import torchrun_ranks
from deepnmt.errors import InputError
from deepnmt.files import lock, replacing
from deepnmt.progress import say
from deepnmt.settings import from_table
from deepnmt.text import check_readable, iterate_lines


@dataclass(frozen=True, kw_only=True)
class SyntheticText:
    """Parallel files of `pairs` lines: `synthetic` has the translations, `given` the text without its empty lines."""

    synthetic: Path
    given: Path
    pairs: int
    left_out: int  # lines without a translation

    def summary(self, kind: str) -> str:
        lines = "line" if self.left_out == 1 else "lines"
        note = f" ({self.left_out:,} {lines} without a translation left out)" if self.left_out else ""
        return f"{self.pairs:,} pairs in {self.synthetic} ({kind}) and {self.given}{note}"


def backtranslate(model: str | Path, text: str | Path, out: str | Path, **options: Any) -> SyntheticText | None:
    """Translate `text` with a MODEL and write `out`.LANGUAGE for both languages; resume an interrupted call.

    `options` are `device`, `precision`, `source_lang` and `target_lang` (for multilingual models), `chunk`, and the
    fields of `TranslationConfig`; without `beam`, translations are sampled, which gives better training data
    (https://arxiv.org/abs/1808.09381). Under torchrun, each rank translates its share of the chunks (of `chunk` lines),
    and the last one to finish merges them; the others return None. The result does not depend on the number of ranks.
    """
    check_text(Path(text))
    if "nbest" in options:
        raise InputError("backtranslate writes one translation per line: omit nbest")
    options.setdefault("sampling", "beam" not in options)
    sides = "source", "target"
    return synthesise([Path(model)], Path(text), Path(out), title="backtranslate", sides=sides, **options)


def distill(
    model: str | Path | Sequence[str | Path],
    source: str | Path,
    out: str | Path,
    *,
    reference: str | Path | None = None,
    **options: Any,
) -> SyntheticText | None:
    """Translate `source`, the source of a parallel text, with a teacher, for a student to learn from.

    Sequence-level knowledge distillation, Kim and Rush 2016 (https://arxiv.org/abs/1606.07947). `model` is a MODEL
    folder, or several, which form an ensemble. With `reference`, the target of that text, each line gets the one of its
    `nbest` translations (default: `beam`) that is most like its reference, by chrF; without it, the best one, which
    `mbr` may choose. The files, `options` (except sampling), resuming and torchrun are as in `backtranslate`.
    """
    folders = [Path(folder) for folder in ([model] if isinstance(model, str | Path) else model)]
    source, out, sides = Path(source), Path(out), ("target", "source")
    check_text(source)
    if options.get("sampling"):
        raise InputError("distill writes the best translations: omit sampling")
    if reference is not None and options.get("mbr"):
        raise InputError("mbr and the reference both choose the translation: omit one of them")
    if reference is None:
        if "nbest" in options:
            raise InputError(
                f"nbest = {options['nbest']} needs a reference, by which one of the translations is chosen"
            )
        return synthesise(folders, source, out, title="distill", sides=sides, **options)
    reference = Path(reference)
    check_text(reference)
    if (lines := count_lines(reference)) != (wanted := count_lines(source)):
        raise InputError(f"{reference} has {lines:,} lines but {source} has {wanted:,}; it needs one for each")
    settings = (default_settings(folders[0]) if folders else {}) | options
    options.setdefault("nbest", settings.get("beam", TranslationConfig.beam))
    lines_of, inputs = _MostLike(reference).lines, [reference]
    return synthesise(folders, source, out, lines_of, title="distill", sides=sides, inputs=inputs, **options)


class _MostLike:
    """The hypothesis of each line that is most like its reference; of equal ones, the first."""

    def __init__(self, references: Path) -> None:
        from sacrebleu.metrics.chrf import CHRF

        self.chrf, self.references = CHRF(), enumerate(iterate_lines(references), start=1)

    def lines(self, number: int, text: str, found: list[Hypothesis]) -> list[str]:
        """The numbers of the lines rise from call to call."""
        reference = next(line for at, line in self.references if at == number).decode(errors="replace")
        best = max(found, key=lambda each: self.chrf.sentence_score(each.text, [reference]).score)
        return PLAIN(number, text, [best])


def synthesise(
    models: Sequence[Path],
    text: Path,
    out: Path,
    lines_of: LinesOf = PLAIN,
    *,
    title: str,
    sides: tuple[str, str],
    inputs: Sequence[Path] = (),
    device: str | None = None,
    precision: str = "fp32",
    chunk: int | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **settings: Any,
) -> SyntheticText | None:
    """`backtranslate`, for any choice of the one translation of a line.

    `lines_of` chooses it, and `inputs` are the files that it reads. If the languages are the same, `sides` replace them
    in the file names: of the translations and of the text.
    """
    from_table(TranslationConfig, (default_settings(models[0]) if models else {}) | settings)
    rank, world_size, local_rank = torchrun_ranks()
    if world_size > 1 and device in (None, "cuda") and torch.cuda.is_available():
        device = f"cuda:{local_rank % torch.cuda.device_count()}"
    translator = Translator(models, device, precision).for_languages(source_lang, target_lang)
    size = chunk_lines(chunk, translator.device.type)
    finals = _finals(out, sides, (text, *inputs), translator)
    languages = {} if source_lang is target_lang is None else {"languages": [source_lang, target_lang]}
    job = fingerprint(models, (text, *inputs), {**settings, "precision": precision, "chunk": size, **languages})
    digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:8]
    shards = [out.with_name(f"{out.name}.shard-{i}-of-{world_size}.{digest}") for i in range(world_size)]
    if not shards[rank].exists():
        with ResumableFile(shards[rank], job) as shard:
            if shard.lines:
                say(f"resuming after {shard.lines:,} lines of this rank's share")
            chunks = file_chunks(text, size, shard.lines, rank, world_size)
            translate_chunks(translator, str(text), chunks, shard, lines_of, title=title, **settings)
    return _merge_if_last(text, shards, finals, size)


def check_text(path: Path) -> None:
    check_readable(path)
    if next(file_chunks(path, 1), None) is None:
        raise InputError(f"{path} is empty")


def _finals(out: Path, sides: tuple[str, str], inputs: Sequence[Path], translator: Translator) -> tuple[Path, Path]:
    """The files of the synthetic and of the given side, named by their languages, or else by their sides."""
    pair = translator.tokenizers[0]
    languages = pair.target.language, pair.source.language
    synthetic, given = sides if languages[0] == languages[1] else languages
    finals = out.with_name(f"{out.name}.{synthetic}"), out.with_name(f"{out.name}.{given}")
    for final in finals:
        if final.is_dir():
            raise InputError(f"{final} is a folder; choose another `out`")
        for path in inputs:
            if final.exists() and final.samefile(path):
                raise InputError(f"out = {out} would overwrite {path}; choose another name")
    return finals


def _merge_if_last(text: Path, shards: list[Path], finals: tuple[Path, Path], size: int) -> SyntheticText | None:
    """Merge the shards once all exist. The lock lets one rank check at a time, so the last to finish sees all."""
    path = finals[0].with_name(f".{finals[0].name}.lock")
    with path.open("w") as held:
        lock(held, wait=True)
        missing = sum(not shard.exists() for shard in shards)
        if missing == len(shards):  # another rank has merged them
            path.unlink(missing_ok=True)
            return None
        if missing:
            say(f"this rank is done; {missing} of {len(shards)} ranks are still translating")
            return None
        pairs, left_out = _merge(text, shards, finals, size)
        for done in (*shards, path):
            done.unlink(missing_ok=True)
    return SyntheticText(synthetic=finals[0], given=finals[1], pairs=pairs, left_out=left_out)


def _merge(text: Path, shards: list[Path], finals: tuple[Path, Path], size: int) -> tuple[int, int]:
    """Pair the text with its translations, chunk by chunk, without lines that have none."""
    pairs = left_out = 0
    with ExitStack() as stack:
        parts = [stack.enter_context(shard.open("rb")) for shard in shards]
        asides = [stack.enter_context(replacing(final)) for final in finals]
        with asides[0].open("wb") as synthetic, asides[1].open("wb") as given:
            for number, (_, chunk) in enumerate(file_chunks(text, size)):
                translations = islice(parts[number % len(parts)], len(chunk))
                for line, translation in zip(chunk, translations, strict=True):
                    if not line.strip() or not translation.strip():
                        left_out += 1
                        continue
                    pairs += 1
                    synthetic.write(translation)
                    given.write(one_line(line.decode(errors="replace")).encode() + b"\n")
    return pairs, left_out
