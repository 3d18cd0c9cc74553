"""Scores of files of translations, for `deepnmt score`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from deepnmt.errors import InputError
from deepnmt.evaluation.comet import DEFAULT_MODEL, read_comet, run_comet
from deepnmt.evaluation.scores import TESTS, Score, Scores, check_lengths, compare, score
from deepnmt.text import read_lines


def score_files(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    test: str | None = "bootstrap",
    samples: int | None = None,
    confidence: bool = False,
    source: str | None = None,
    comet: bool = False,
    comet_model: str | None = None,
    comet_scores: Sequence[str] = (),
    on_metric: Callable[[str], None] = lambda title: None,
    **options: Any,
) -> list[tuple[str, Scores]]:
    """The scores of each file of hypotheses, by name; `-` is standard input, and .gz, .xz, .bz2 are decompressed.

    Several files are compared with the first by a paired `test` (a name of `TESTS`, or None). `confidence` adds 95 %
    intervals. COMET is run (`comet`, which needs `source`) or read from the output of comet-score (`comet_scores`).
    `options` are those of `deepnmt.score`: languages, metrics, lowercase.
    """
    if [*hypotheses, *references, source].count("-") > 1:
        raise InputError("only one file can be standard input (-)")
    if samples is not None and samples < 2:
        raise InputError(f"samples = {samples} must be above 1")
    if samples is not None and not confidence and (len(hypotheses) == 1 or test is None):
        raise InputError(f"samples = {samples} has no effect without intervals (--confidence) or a paired test")
    reference_files = [(path, read_lines(path)) for path in references]
    systems = [(path, read_lines(path)) for path in hypotheses]
    check_lengths(systems, reference_files)
    # COMET first, because its input may be refused.
    of_comet: list[Score] = []
    if comet_scores:
        of_comet = read_comet(comet_scores, systems, comet_model)
    elif comet:
        of_comet = run_comet(source, systems, reference_files, comet_model or DEFAULT_MODEL)
    lines = [lines for _, lines in reference_files]
    if len(systems) > 1 and test is not None:
        scored = compare(systems, lines, test=test, samples=samples, on_metric=on_metric, **options)
    else:
        options["resamples"] = (samples or TESTS["bootstrap"].samples) if confidence else 0
        scored = [(path, score(text, lines, on_metric=on_metric, **options)) for path, text in systems]
    if not of_comet:
        return scored
    return [
        (name, replace(scores, figures={**scores.figures, "comet": figure}))
        for (name, scores), figure in zip(scored, of_comet, strict=True)
    ]
