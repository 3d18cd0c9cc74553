"""`deepnmt.evaluate`: translate a test set and score the translations."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.lines import LineWarnings, one_line
from deepnmt.decoding.translator import Translator, in_processes
from deepnmt.errors import InputError
from deepnmt.evaluation.scores import TESTS, Scores, read_parallel, score
from deepnmt.files import write_text
from deepnmt.progress import progress
from deepnmt.settings import from_table
from deepnmt.text import joined


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores with their signatures, the translations, and the search settings."""

    scores: Scores
    hypotheses: list[str]
    settings: dict[str, Any]
    seconds: float  # of translation


def evaluate(
    model: str | Path | Sequence[str | Path],
    source: str | Path,
    references: str | Path | Sequence[str | Path],
    *,
    output: str | Path | None = None,
    device: str | None = None,
    precision: str = "fp32",
    shortlist: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    confidence: bool = False,
    **settings: Any,
) -> Evaluation:
    """Translate the file `source` with a MODEL (or an ensemble) and score it against `references`, one file or several.

    `settings` are the fields of `TranslationConfig` (`beam`, `length_penalty`, ...), by default the model's. `output`
    is a file for the translations. `shortlist` uses the model's lexical shortlist. `confidence` adds 95 % intervals by
    bootstrap resampling. `source_lang` and `target_lang` (by default the model's), `metrics` and `lowercase` are those
    of `deepnmt.score`; `device` and `precision` those of `Translator`.
    """
    from_table(TranslationConfig, settings)
    out = None if output is None else Path(output)
    if out is not None and out.is_dir():
        raise InputError(f"{out} is a folder; choose a file for the output")
    paths = [references] if isinstance(references, str | Path) else references
    lines, *reference_lines = read_parallel(source, *paths)
    translator = Translator(model, device, precision, shortlist)
    if translator.tokenizers[0].is_multilingual:
        translator = translator.for_languages(source_lang, target_lang)
    settings = translator.defaults | settings

    warnings = LineWarnings(str(source))
    started = time.perf_counter()
    total = sum(1 for line in lines if line.strip())
    with progress("translate", total=total) as shown, in_processes(translator):
        translations = translator.translate(lines, warn=warnings.after(0), done=shown.advance, **settings)
    seconds = time.perf_counter() - started
    warnings.summarise()
    hypotheses = [one_line(text) for text in translations]
    if out is not None:
        write_text(out, joined(hypotheses))

    languages = translator.tokenizers[0]
    scores = score(
        hypotheses,
        reference_lines,
        source_lang=source_lang or languages.source.language,
        target_lang=target_lang or languages.target.language,
        metrics=metrics,
        lowercase=lowercase,
        resamples=TESTS["bootstrap"].samples if confidence else 0,
    )
    return Evaluation(scores=scores, hypotheses=hypotheses, settings=settings, seconds=seconds)
