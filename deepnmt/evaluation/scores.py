"""Scores of translations, each with a signature that defines it exactly."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deepnmt.errors import InputError
from deepnmt.evaluation.metrics import METRICS, Languages, build, choose

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.base import Score as MetricScore

Lines = Sequence[str]
Named = Sequence[tuple[str, Lines]]  # with the name used in messages


@dataclass(frozen=True, kw_only=True)
class Score:
    """One figure; `low` to `high` is its 95 % bootstrap interval, `p_value` tests its difference from a baseline."""

    name: str
    value: float
    signature: str
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    decimals: int = 2

    def as_dict(self) -> dict[str, Any]:
        table = asdict(self)
        del table["decimals"]
        return table

    def __str__(self) -> str:
        return f"{self.signature} = {self.value:.{self.decimals}f}"


@dataclass(frozen=True)
class Scores(Mapping[str, Score]):
    """The figures of one system by their short names: `scores.bleu` is `scores["bleu"]`."""

    figures: Mapping[str, Score]
    num_lines: int
    notices: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Score:
        return self.figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def __getattr__(self, name: str) -> Score:
        figures: Mapping[str, Score] = self.__dict__.get("figures", {})
        if name not in figures:
            raise AttributeError(f"no score {name!r} here; there are {', '.join(figures)}")
        return figures[name]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        return {name: figure.as_dict() for name, figure in self.items()}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=2)

    def table(self, width: int | None = None) -> str:
        """Plain text: one line a score with the signature last, or folded to `width` columns."""
        from deepnmt.evaluation.table import folded, lines

        return lines([("", self)]) if width is None else folded([("", self)], width).plain

    def __str__(self) -> str:
        return self.table()


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    title: str
    code: str
    samples: int


TESTS = {
    "bootstrap": PairedTest(title="paired bootstrap", code="bs", samples=1_000),
    "randomization": PairedTest(title="paired approximate randomisation", code="ar", samples=10_000),
}


def score(
    hypotheses: Lines,
    references: Lines | Sequence[Lines],
    source_lang: str | None = None,
    target_lang: str | None = None,
    *,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    resamples: int = 0,
    on_metric: Callable[[str], None] = lambda title: None,
) -> Scores:
    """Score raw, detokenised lines against one reference or several (each a list with the same number of lines).

    `metrics` are names of `deepnmt.evaluation.metrics.METRICS`, by default all that suit the languages, with
    `lowercase` in their case-insensitive variants. `resamples` above one adds 95 % intervals from that many resamples.
    """

    def figures(name: str, metric: "Metric", references: Sequence[Lines]) -> list[Score]:
        # sacreBLEU cannot take the mean of resamples of which some score 0 and so are of another type of number.
        compute = metric._compute_score_from_stats
        metric._compute_score_from_stats = lambda stats: _with_plain_number(compute(stats))  # type: ignore[method-assign]
        result = metric.corpus_score(hypotheses, references, n_bootstrap=resamples)
        mean, half = float(result._mean), float(result._ci)
        low, high = (mean - half, mean + half) if resamples > 1 else (None, None)
        signature = f"{result.name}|{metric.get_signature()}"
        return [Score(name=METRICS[name].title, value=float(result.score), signature=signature, low=low, high=high)]

    languages, named = Languages(source_lang, target_lang), [("hypotheses", hypotheses)]
    return _scored(named, references, languages, metrics, lowercase, on_metric, figures)[0][1]


def _with_plain_number(found: "MetricScore") -> "MetricScore":
    found.score = float(found.score)
    return found


def compare(
    systems: Mapping[str, Lines] | Named,
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

    def figures(name: str, metric: "Metric", references: Sequence[Lines]) -> list[Score]:
        from sacrebleu.significance import PairedTest

        # One metric at a time, because all variants of BLEU have the same name in sacreBLEU.
        confidence = TESTS["bootstrap"].samples if test == "randomization" else -1
        count = samples or TESTS[test].samples
        tested: Any = PairedTest(named, {name: metric}, references, TESTS[test].code, count, confidence)()
        ((kind, signature),) = tested[0].items()
        results = tested[1][kind]
        return [
            Score(
                name=METRICS[name].title,
                value=float(result.score),
                signature=f"{kind}|{signature}",
                low=float(result.mean - result.ci),
                high=float(result.mean + result.ci),
                p_value=None if result is results[0] else _p_value(result, results[0]),
            )
            for result in results
        ]

    languages = Languages(source_lang, target_lang)
    return _scored(named, references, languages, metrics, lowercase, on_metric, figures)


def _p_value(result: Any, baseline: Any) -> float:
    """1 for equal scores, where sacreBLEU reports the smallest possible p-value."""
    return 1.0 if result.score == baseline.score else float(result.p_value)


def _scored(
    systems: Named,
    references: Lines | Sequence[Lines],
    languages: Languages,
    metrics: Sequence[str] | None,
    lowercase: bool,
    on_metric: Callable[[str], None],
    figures: Callable[[str, "Metric", Sequence[Lines]], list[Score]],  # of one metric, for each system
) -> list[tuple[str, Scores]]:
    if not references:
        raise InputError("no reference to score against")
    sets: Any = [references] if isinstance(references[0], str) else list(references)
    check_lengths(systems, [(f"reference {i}", lines) for i, lines in enumerate(sets, start=1)])
    found: list[dict[str, Score]] = [{} for _ in systems]
    for name, metric in build(metrics or choose(languages, lowercase), languages).items():
        on_metric(METRICS[name].title)
        for own, figure in zip(found, figures(name, metric, sets), strict=True):
            own[name] = figure
    return [
        (name, Scores(own, len(lines), (*languages.notices, *_appearance(name, lines))))
        for (name, lines), own in zip(systems, found, strict=True)
    ]


def quick_scores(hypotheses: Lines, references: Lines | Sequence[Lines], target_lang: str | None = None) -> Scores:
    """BLEU and chrF only, for validation during training."""
    return score(hypotheses, references, target_lang=target_lang, metrics=("bleu", "chrf"))


def check_lengths(systems: Named, references: Named) -> None:
    """Raise unless all have the same number of lines, at least one."""
    first_name, first_lines = references[0]
    for name, lines in (*references, *systems):
        if not lines:
            raise InputError(f"{name} is empty: nothing to score")
        if len(lines) != len(first_lines):
            raise InputError(
                f"{name} has {len(lines):,} lines and {first_name} has {len(first_lines):,}:"
                " corresponding lines must be translations of the same sentence"
            )


def _appearance(name: str, lines: Lines) -> list[str]:
    """Notices about lines that do not look like raw text."""
    notices = []
    tokenised = sum(line.endswith((" .", " ?", " !")) for line in lines)
    if tokenised * 10 > len(lines):
        notices.append(
            f"{name}: {tokenised:,} of {len(lines):,} lines end in a detached full stop, like tokenised text;"
            " these scores expect raw text: detokenise first"
        )
    subwords = sum("@@ " in line or "▁" in line for line in lines)
    if subwords * 10 > len(lines):
        notices.append(
            f"{name}: {subwords:,} of {len(lines):,} lines contain subword marks (@@ or ▁): join the subwords first"
        )
    return notices
