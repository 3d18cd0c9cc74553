"""The scores there are: one table, from a short name to what it is called, what it equals and how it is built."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from deepnmt.errors import InputError
from deepnmt.languages import base_language

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

    from deepnmt.evaluation.multibleu import MosesWords

# Written without spaces between words: Moses tokens and word n-grams say nothing there.
UNSPACED = ("zh", "ja")


@dataclass
class Languages:
    """The pair that is scored. What had to be done differently for it is collected in `notices`."""

    source: str | None = None
    target: str | None = None
    notices: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, source: str | None, target: str | None) -> "Languages":
        """By the base of the codes (`de` for `de_AT`), which is what tokenisers are chosen by."""
        bases = [base_language(code) if code else None for code in (source, target)]
        return cls(bases[0], bases[1])

    def notice(self, sentence: str) -> None:
        if sentence not in self.notices:
            self.notices.append(sentence)

    @cached_property
    def words(self) -> "MosesWords":
        return self._moses(compounds=False)

    @cached_property
    def compound_words(self) -> "MosesWords":
        return self._moses(compounds=True)

    def _moses(self, compounds: bool) -> "MosesWords":
        from deepnmt.evaluation.multibleu import MosesWords

        if self.target is None:
            raise InputError("tokenised BLEU needs the target language: add --target-lang")
        words = MosesWords(self.target, compounds)
        if not words.known:
            self.notice(
                f"Moses has no abbreviations for target language {self.target!r}: English's are used, as Moses does"
            )
        return words


@dataclass(frozen=True)
class MetricKind:
    title: str
    about: str
    build: Callable[[Languages], "Metric"]
    lower_is_better: bool = False


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


def _multi_bleu(words: "MosesWords", lowercase: bool) -> "Metric":
    from deepnmt.evaluation.multibleu import MultiBLEU

    return MultiBLEU(words, lowercase)


def _chrf(lowercase: bool, word_order: int) -> "Metric":
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(lowercase=lowercase, word_order=word_order)


def _ter(languages: Languages, case_sensitive: bool) -> "Metric":
    from sacrebleu.metrics.ter import TER

    by_character = languages.target in UNSPACED
    return TER(normalized=by_character, asian_support=by_character, case_sensitive=case_sensitive)


METRICS = {
    "bleu": MetricKind("BLEU", "sacreBLEU: report this one", lambda pair: _sacrebleu(pair, lowercase=False)),
    "bleu_lower": MetricKind("BLEU, case ignored", "sacreBLEU -lc", lambda pair: _sacrebleu(pair, lowercase=True)),
    "multi_bleu": MetricKind("tokenised BLEU", "multi-bleu.perl", lambda pair: _multi_bleu(pair.words, False)),
    "multi_bleu_lower": MetricKind(
        "tokenised BLEU, case ignored", "multi-bleu.perl -lc", lambda pair: _multi_bleu(pair.words, True)
    ),
    "compound_bleu": MetricKind(
        "compound-split BLEU", "the paper's En-De figure", lambda pair: _multi_bleu(pair.compound_words, False)
    ),
    "compound_bleu_lower": MetricKind(
        "compound-split BLEU, case ignored",
        "the paper's steps, then -lc",
        lambda pair: _multi_bleu(pair.compound_words, True),
    ),
    "chrf": MetricKind("chrF2", "character n-grams", lambda _: _chrf(False, word_order=0)),
    "chrf_lower": MetricKind("chrF2, case ignored", "character n-grams", lambda _: _chrf(True, word_order=0)),
    "chrf_plus": MetricKind("chrF2++", "character and word n-grams", lambda _: _chrf(False, word_order=2)),
    "chrf_plus_lower": MetricKind(
        "chrF2++, case ignored", "character and word n-grams", lambda _: _chrf(True, word_order=2)
    ),
    "ter": MetricKind(
        "TER, case ignored", "edits: lower is better", lambda pair: _ter(pair, False), lower_is_better=True
    ),
    "ter_cased": MetricKind("TER", "edits: lower is better", lambda pair: _ter(pair, True), lower_is_better=True),
}


def choose(languages: Languages, lowercase: bool) -> list[str]:
    """The scores that make sense for this pair, by default all of them."""
    names = ["bleu_lower"] if lowercase else ["bleu", "bleu_lower"]
    if languages.target is None:
        languages.notice("tokenised BLEU is left out: it needs the target language (--target-lang)")
    elif languages.target not in UNSPACED:
        names += ["multi_bleu_lower"] if lowercase else ["multi_bleu", "multi_bleu_lower"]
        if languages.target == "de" and languages.source in (None, "en"):
            names += ["compound_bleu_lower"] if lowercase else ["compound_bleu"]
    names += ["chrf_lower"] if lowercase else ["chrf"]
    if languages.target not in UNSPACED:
        names += ["chrf_plus_lower"] if lowercase else ["chrf_plus"]
    return [*names, "ter"]


def build(names: Sequence[str], languages: Languages) -> dict[str, "Metric"]:
    for name in names:
        if name not in METRICS:
            raise InputError(f"unknown score {name!r}; one of {', '.join(METRICS)}")
    return {name: METRICS[name].build(languages) for name in names}
