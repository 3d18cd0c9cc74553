"""The table of all scores: name, title, description and constructor of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from deepnmt.errors import InputError
from deepnmt.languages import base_language

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

# Written without spaces, so Moses tokens and word n-grams are meaningless.
UNSPACED = ("zh", "ja")


@dataclass
class Languages:
    """The language pair, by base codes (`de` for `de_AT`), which select the tokenisers.

    `notices` collects deviations from the usual scores.
    """

    source: str | None = None
    target: str | None = None
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source, self.target = (code and base_language(code) for code in (self.source, self.target))

    def notice(self, sentence: str) -> None:
        if sentence not in self.notices:
            self.notices.append(sentence)


def _sacrebleu(languages: Languages, lowercase: bool) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU

    try:
        return BLEU(lowercase=lowercase, trg_lang=languages.target or "", force=True)
    except (RuntimeError, ImportError):
        language = languages.target
        languages.notice(
            f"sacreBLEU's word tokeniser for {language!r} is not installed (pip install 'sacrebleu[{language}]'):"
            " BLEU is over characters, tok:char in its signature, and not comparable with published figures over words"
        )
        return BLEU(lowercase=lowercase, tokenize="char", force=True)


def _multi_bleu(languages: Languages, lowercase: bool, compounds: bool = False) -> "Metric":
    from deepnmt.evaluation.multibleu import MultiBLEU, moses_words

    if languages.target is None:
        raise InputError("tokenised BLEU needs the target language: add target_lang")
    words = moses_words(languages.target, compounds)
    if not words.known:
        languages.notice(
            f"Moses has no abbreviations for target language {languages.target!r}: English ones are used, as in Moses"
        )
    return MultiBLEU(words, lowercase)


def _make_chrf(languages: Languages, lowercase: bool, word_order: int) -> "Metric":
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(lowercase=lowercase, word_order=word_order)


def _ter(languages: Languages, lowercase: bool) -> "Metric":
    from sacrebleu.metrics.ter import TER

    by_character = languages.target in UNSPACED
    return TER(normalized=by_character, asian_support=by_character, case_sensitive=not lowercase)


@dataclass(frozen=True)
class MetricKind:
    title: str
    about: str
    make: Callable[[Languages, bool], "Metric"]
    lowercase: bool = False
    lower_is_better: bool = False


_compound_bleu = partial(_multi_bleu, compounds=True)
_chrf, _chrf_plus = partial(_make_chrf, word_order=0), partial(_make_chrf, word_order=2)
METRICS = {
    "bleu": MetricKind("BLEU", "sacreBLEU: report this one", _sacrebleu),
    "bleu_lower": MetricKind("BLEU, case ignored", "sacreBLEU -lc", _sacrebleu, True),
    "multi_bleu": MetricKind("tokenised BLEU", "multi-bleu.perl", _multi_bleu),
    "multi_bleu_lower": MetricKind("tokenised BLEU, case ignored", "multi-bleu.perl -lc", _multi_bleu, True),
    "compound_bleu": MetricKind("compound-split BLEU", "the paper's En-De figure", _compound_bleu),
    "compound_bleu_lower": MetricKind(
        "compound-split BLEU, case ignored", "the paper's steps, then -lc", _compound_bleu, True
    ),
    "chrf": MetricKind("chrF2", "character n-grams", _chrf),
    "chrf_lower": MetricKind("chrF2, case ignored", "character n-grams", _chrf, True),
    "chrf_plus": MetricKind("chrF2++", "character and word n-grams", _chrf_plus),
    "chrf_plus_lower": MetricKind("chrF2++, case ignored", "character and word n-grams", _chrf_plus, True),
    "ter": MetricKind("TER, case ignored", "edits: lower is better", _ter, True, lower_is_better=True),
    "ter_cased": MetricKind("TER", "edits: lower is better", _ter, lower_is_better=True),
}


def choose(languages: Languages) -> list[str]:
    """The scores that are computed for this pair by default."""
    if languages.target in UNSPACED:
        return ["bleu", "bleu_lower", "chrf", "ter"]
    moses = ["multi_bleu", "multi_bleu_lower"]
    if languages.target is None:
        moses = []
        languages.notice("tokenised BLEU is omitted, because it needs the target language")
    elif languages.target == "de" and languages.source in (None, "en"):
        moses.append("compound_bleu")
    return ["bleu", "bleu_lower", *moses, "chrf", "chrf_plus", "ter"]


def lowercased(name: str) -> str:
    """The case-insensitive variant of a score."""
    return "ter" if name.startswith("ter") else f"{name.removesuffix('_lower')}_lower"


def build(names: Sequence[str], languages: Languages) -> dict[str, "Metric"]:
    for name in names:
        if name not in METRICS:
            raise InputError(f"unknown score {name!r}; choose from {', '.join(METRICS)}")
    return {name: METRICS[name].make(languages, METRICS[name].lowercase) for name in names}
