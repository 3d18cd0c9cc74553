"""Is one system better than another, or lucky with this test set: paired tests against a baseline, by sacreBLEU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepnmt.errors import InputError
from deepnmt.evaluation.metrics import METRICS, Languages, build, choose
from deepnmt.evaluation.scores import Lines, Score, Scores, appearance, as_reference_sets, check_lengths

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    title: str
    code: str
    samples: int


TESTS = {
    "bootstrap": PairedTest(title="paired bootstrap", code="bs", samples=1_000),
    "randomization": PairedTest(title="paired approximate randomisation", code="ar", samples=10_000),
}


def compare(
    systems: Mapping[str, Lines] | Sequence[tuple[str, Lines]],
    references: Lines | Sequence[Lines],
    source_lang: str | None = None,
    target_lang: str | None = None,
    *,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    test: str = "bootstrap",
    samples: int | None = None,
    on_metric: Callable[[str], None] = lambda title: None,
) -> list[tuple[str, Scores]]:
    """Score named systems; the first is the baseline, the others get p-values for their differences from it.

    The interval of each score comes from the default number of bootstrap resamples.
    """
    named = list(systems.items()) if isinstance(systems, Mapping) else list(systems)
    if len(named) < 2:
        raise InputError("a paired test needs two hypotheses or more")
    if test not in TESTS:
        raise InputError(f"unknown test {test!r}; one of {', '.join(TESTS)}")
    references = as_reference_sets(references)
    check_lengths(named, [(f"reference {i}", lines) for i, lines in enumerate(references, start=1)])

    languages = Languages.of(source_lang, target_lang)
    figures: list[dict[str, Score]] = [{} for _ in named]
    for name, metric in build(metrics or choose(languages, lowercase), languages).items():
        on_metric(METRICS[name].title)
        tested = _test(name, metric, named, references, TESTS[test], samples or TESTS[test].samples)
        for own, figure in zip(figures, tested, strict=True):
            own[name] = figure
    return [
        (name, Scores(own, len(lines), (*languages.notices, *appearance(name, lines))))
        for (name, lines), own in zip(named, figures, strict=True)
    ]


def _test(
    name: str,
    metric: "Metric",
    systems: list[tuple[str, Lines]],
    references: Sequence[Lines],
    test: PairedTest,
    samples: int,
) -> list[Score]:
    from sacrebleu import significance

    # One metric at a time: sacreBLEU tells metrics apart by a name that all kinds of BLEU share.
    paired = significance.PairedTest(
        systems,
        {name: metric},
        references,
        test_type=test.code,
        n_samples=samples,
        n_ar_confidence=TESTS["bootstrap"].samples if test.code == "ar" else -1,
    )
    signatures, results = paired()
    ((kind, signature),) = signatures.items()
    baseline, *others = results[kind]
    return [
        _figure(name, f"{kind}|{signature}", baseline, None),
        *(_figure(name, f"{kind}|{signature}", other, baseline) for other in others),
    ]


def _figure(name: str, signature: str, result: Any, baseline: Any) -> Score:
    p_value = None if baseline is None else float(result.p_value)
    if baseline is not None and result.score == baseline.score:
        # No difference is no evidence of one. sacreBLEU counts only resamples that differ by more, none here, and calls
        # a system significantly different from itself.
        p_value = 1.0
    return Score(
        name=METRICS[name].title,
        value=float(result.score),
        signature=signature,
        low=float(result.mean - result.ci),
        high=float(result.mean + result.ci),
        p_value=p_value,
    )
