"""Scores of translations, every figure with the signature that says exactly which figure it is."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deepnmt.errors import InputError
from deepnmt.evaluation.metrics import METRICS, Languages, build, choose

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Lines = Sequence[str]


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

        return lines([("", self)]) if width is None else folded([("", self)], width)

    def __str__(self) -> str:
        return self.table()


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

    `metrics` are names of `deepnmt.evaluation.metrics.METRICS`; absent, all that suit the languages are computed, with
    `lowercase` their case-insensitive kinds. `resamples` above one adds 95 % intervals from that many resamples.
    """
    references = as_reference_sets(references)
    check_lengths(
        [("hypotheses", hypotheses)], [(f"reference {i}", lines) for i, lines in enumerate(references, start=1)]
    )
    languages = Languages.of(source_lang, target_lang)
    figures = {}
    for name, metric in build(metrics or choose(languages, lowercase), languages).items():
        on_metric(METRICS[name].title)
        figures[name] = _figure(name, metric, hypotheses, references, resamples)
    notices = (*languages.notices, *appearance("the hypotheses", hypotheses))
    return Scores(figures, len(hypotheses), notices)


def quick_scores(hypotheses: Lines, references: Lines | Sequence[Lines], target_lang: str | None = None) -> Scores:
    """BLEU and chrF only: what validation during training looks at."""
    return score(hypotheses, references, target_lang=target_lang, metrics=("bleu", "chrf"))


def _figure(name: str, metric: "Metric", hypotheses: Lines, references: Sequence[Lines], resamples: int) -> Score:
    result = metric.corpus_score(hypotheses, references, n_bootstrap=resamples)
    mean, half = float(result._mean), float(result._ci)
    low, high = (mean - half, mean + half) if resamples > 1 else (None, None)
    signature = f"{result.name}|{metric.get_signature()}"
    return Score(name=METRICS[name].title, value=float(result.score), signature=signature, low=low, high=high)


def as_reference_sets(references: Lines | Sequence[Lines]) -> list[Lines]:
    if not references:
        raise InputError("there is no reference to score against")
    if isinstance(references[0], str):
        return [references]  # type: ignore[list-item]
    return list(references)


def check_lengths(systems: Sequence[tuple[str, Lines]], references: Sequence[tuple[str, Lines]]) -> None:
    """Refuse unless all (name, lines) have the same number of lines, at least one."""
    first_name, first_lines = references[0]
    for name, lines in (*references, *systems):
        if not lines:
            raise InputError(f"{name} is empty: nothing to score")
        if len(lines) != len(first_lines):
            raise InputError(
                f"{name} has {len(lines):,} lines and {first_name} has {len(first_lines):,}:"
                " line n must translate what line n of the reference translates"
            )


def appearance(name: str, lines: Lines) -> list[str]:
    """What looks wrong with lines that should be raw text."""
    notices = []
    tokenised = sum(line.endswith((" .", " ?", " !")) for line in lines)
    if tokenised * 10 > len(lines):
        notices.append(
            f"{name}: {tokenised:,} of {len(lines):,} lines end in a detached full stop, as tokenised text does;"
            " these scores expect raw text: detokenise first"
        )
    subwords = sum("@@ " in line or "▁" in line for line in lines)
    if subwords * 10 > len(lines):
        notices.append(
            f"{name}: {subwords:,} of {len(lines):,} lines carry subword marks (@@ or ▁): join the words first"
        )
    return notices
