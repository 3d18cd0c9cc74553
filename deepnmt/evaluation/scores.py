"""Scores of translations, each with a signature that defines it exactly."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepnmt.columns import ShownAsText
from deepnmt.errors import InputError
from deepnmt.evaluation.metrics import METRICS, Languages, build, choose, lowercased
from deepnmt.text import read_lines

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

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
class Scores(ShownAsText, Mapping[str, Score]):
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
    samples: int


TESTS = {
    "bootstrap": PairedTest(title="paired bootstrap", samples=1_000),
    "randomization": PairedTest(title="paired approximate randomisation", samples=10_000),
}
FEW_LINES = 30  # for a bootstrap


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
    """Score `hypotheses`, raw, detokenised lines, against one reference or several.

    `references` is a list of lines, or a list of such lists. `source_lang` and `target_lang` are codes, such as en and
    de, which select the tokenisers. `metrics` are names of `deepnmt.evaluation.metrics.METRICS`, by default all that
    suit the languages; `lowercase` replaces each by its case-insensitive variant. `resamples` above one adds 95 %
    intervals from that many resamples.
    `on_metric` is called with the title of each score before it is computed.
    """
    languages = Languages(source_lang, target_lang)
    return _scored([("hypotheses", hypotheses)], references, languages, metrics, lowercase, on_metric, resamples)[0][1]


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
    """Score named `systems`; the first is the baseline, the others get p-values for their differences from it.

    `test` is "bootstrap" or "randomization", with this number of `samples`. `references`, `source_lang`, `target_lang`,
    `metrics`, `lowercase` and `on_metric` are those of `score`. Intervals come from the bootstrap's resamples; with the
    randomisation test, from their default number.
    """
    named = list(systems.items()) if isinstance(systems, Mapping) else list(systems)
    if len(named) < 2:
        raise InputError("a paired test needs two hypotheses or more")
    if test not in TESTS:
        raise InputError(f"unknown test {test!r}; choose from {', '.join(TESTS)}")
    languages, count = Languages(source_lang, target_lang), samples or TESTS[test].samples
    if test == "bootstrap" and len(named[0][1]) < FEW_LINES:
        languages.notice(
            f"a bootstrap over {len(named[0][1])} lines gives p-values that are too small; use the randomization test"
        )
    resamples, trials = (count, None) if test == "bootstrap" else (TESTS["bootstrap"].samples, count)
    return _scored(named, references, languages, metrics, lowercase, on_metric, resamples, trials)


def _scored(
    systems: Named,
    references: Lines | Sequence[Lines],
    languages: Languages,
    metrics: Sequence[str] | None,
    lowercase: bool,
    on_metric: Callable[[str], None],
    resamples: int,
    trials: int | None = None,
) -> list[tuple[str, Scores]]:
    sets: Any = [references] if isinstance(next(iter(references), None), str) else list(references)
    check_lengths(systems, [(f"reference {i}", lines) for i, lines in enumerate(sets, start=1)])
    found: list[dict[str, Score]] = [{} for _ in systems]
    names = [metrics] if isinstance(metrics, str) else metrics or choose(languages)
    names = list(dict.fromkeys(map(lowercased, names))) if lowercase else names
    for name, metric in build(names, languages).items():
        on_metric(METRICS[name].title)
        figures = _figures(METRICS[name].title, metric, [lines for _, lines in systems], sets, resamples, trials)
        for own, figure in zip(found, figures, strict=True):
            own[name] = figure
    return [
        (name, Scores(own, len(lines), (*languages.notices, *_appearance(name, lines))))
        for (name, lines), own in zip(systems, found, strict=True)
    ]


def _figures(
    title: str,
    metric: "Metric",
    systems: Sequence[Lines],
    references: Sequence[Lines],
    resamples: int,
    trials: int | None,
) -> Iterator[Score]:
    """The figure of each system: with an interval if there are resamples; of several systems, with p-values.

    They are the bootstrap's, or those of the randomisation test with this number of `trials`.
    """
    from deepnmt.evaluation import paired_tests

    statistics = [metric._extract_corpus_statistics(lines, references) for lines in systems]
    scores = [metric._aggregate_and_compute(own) for own in statistics]
    signature = metric.get_signature()
    drawn: list[paired_tests.Values] = []
    if resamples > 1:
        drawn = [paired_tests.bootstrap(metric, own, resamples) for own in statistics]
        for key, value in {"seed": paired_tests.SEED, "bs": resamples, "ar": trials}.items():
            signature.update(key, value)
    for number, score in enumerate(scores):
        low, high = paired_tests.interval(drawn[number]) if drawn else (None, None)
        p_value = None
        if number and drawn and trials:
            p_value = paired_tests.randomisation_p(metric, statistics[0], statistics[number], trials)
        elif number and drawn:
            p_value = paired_tests.bootstrap_p(score.score - scores[0].score, drawn[number] - drawn[0])
        yield Score(
            name=title,
            value=float(score.score),
            signature=f"{score.name}|{signature}",
            low=low,
            high=high,
            p_value=p_value,
        )


def quick_scores(hypotheses: Lines, references: Lines | Sequence[Lines], target_lang: str | None = None) -> Scores:
    """BLEU and chrF only, for validation during training."""
    return score(hypotheses, references, target_lang=target_lang, metrics=("bleu", "chrf"))


def read_parallel(*paths: str | Path) -> list[list[str]]:
    """The lines of files that must have the same number of lines, at least one."""
    files = [(str(path), read_lines(str(path))) for path in paths]
    check_lengths(files[:1], files[1:])
    return [lines for _, lines in files]


def check_lengths(systems: Named, references: Named) -> None:
    """Raise unless all have the same number of lines, at least one."""
    if not references:
        raise InputError("no reference to score against")
    first_name, first_lines = references[0]
    for name, lines in (*references, *systems):
        if isinstance(lines, str):
            raise InputError(f"{name} must be a list of lines, not a string")
        if not lines:
            raise InputError(f"{name} is empty: nothing to score")
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str):
                raise InputError(f"{name} must be strings, but number {number:,} is {line!r}")
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
