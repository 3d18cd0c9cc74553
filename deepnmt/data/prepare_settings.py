"""The settings of `prepare`, with their defaults and checks."""

from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from deepnmt.data.vocabulary import SPECIAL_PIECES
from deepnmt.errors import InputError
from deepnmt.settings import check_bounds

Pretokenizer = Literal["none", "moses", "jieba"]
Normalization = Literal["nfc", "nfkc", "none"]
LanguageCheck = Literal["none", "script", "langid"]
Reason = Literal["control", "identical", "script", "language", "too-long", "ratio", "overlap", "duplicate"]
"""Reasons that `keep` may name; pairs with other defects, such as invalid UTF-8, are always dropped."""
REASONS = {
    "columns": "not two columns",
    "utf8": "invalid UTF-8",
    "empty": "a side is empty",
    "control": "control or replacement characters",
    "identical": "both sides identical",
    "script": "wrong script",
    "language": "wrong language",
    "too-long": "too long",
    "ratio": "lengths too different",
    "held-out": "held out for validation",
    "overlap": "a side occurs in valid or test",
    "duplicate": "exact duplicate",
}
LEAST_COVERAGE = 0.98  # SentencePiece refuses less
LONGEST_PIECE = 16  # in characters, by default in SentencePiece
RATIO_FREE_LENGTH = 10  # ratios of a few words mean nothing: "shopping list" is one word in German


@dataclass(frozen=True, kw_only=True)
class CleaningSettings:
    """Which training pairs are dropped. `keep` names reasons to ignore; 0 switches a limit off."""

    max_length: int = 100
    max_ratio: float = 3.0
    length_unit: Literal["subwords", "words"] = "subwords"
    language_check: LanguageCheck = "none"
    keep: tuple[Reason, ...] = ()

    def judge_lengths(self, source: int, target: int) -> str | None:
        shorter, longer = min(source, target), max(source, target)
        if self.max_length and longer > self.max_length and "too-long" not in self.keep:
            return "too-long"
        unequal = longer > max(self.max_ratio * shorter, RATIO_FREE_LENGTH)
        if self.max_ratio and unequal and "ratio" not in self.keep:
            return "ratio"
        return None


@dataclass(frozen=True, kw_only=True)
class SubwordSettings:
    """How subwords are learned. `vocab_size` is one number, or one per side if not `joint`."""

    subwords: Literal["bpe", "unigram"] = "bpe"
    joint: bool = True
    vocab_size: tuple[int, ...] = (32000,)
    min_frequency: int = 5
    byte_fallback: bool = True
    character_coverage: float = 0.9999


@dataclass(frozen=True, kw_only=True)
class PrepareSettings(CleaningSettings, SubwordSettings):
    """Everything but the text. Tuples have one value for both sides, or one per side."""

    hold_out: int | None = None  # pairs to take out of the training text for validation, of each direction
    tokenizer_lines: int = 1_000_000
    tokenizer: tuple[Path, ...] = ()
    codes: tuple[Path, ...] = ()
    pretokenizer: tuple[Pretokenizer, ...] = ("none",)
    lowercase: bool = False
    normalization: Normalization = "nfc"

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 1), ("pretokenizer", 1), ("tokenizer", 0), ("codes", 0)):
            if not least <= (count := len(getattr(self, name))) <= 2:
                raise InputError(f"{name} takes one value for both sides, or one per side, not {count}")
        if self.joint and len(set(self.vocab_size)) > 1:
            sizes = " and ".join(map(str, self.vocab_size))
            raise InputError(f"vocab_size = {sizes}: two sizes need joint = false (--separate)")
        check_bounds(self, "vocab_size", least=len(SPECIAL_PIECES) + 1, below=1e9)
        check_bounds(self, "min_frequency tokenizer_lines hold_out", least=1)
        check_bounds(self, "max_length", least=0)
        if self.max_ratio != 0 and not 1 <= self.max_ratio < inf:
            raise InputError(f"max_ratio = {self.max_ratio} must be at least 1, or 0 for no limit")
        if not LEAST_COVERAGE <= self.character_coverage <= 1:
            raise InputError(f"character_coverage = {self.character_coverage} must be from {LEAST_COVERAGE} to 1")
        if self.tokenizer and self.codes:
            raise InputError("give either tokenizer or codes, not both")

    def longest_word(self) -> float:
        """A pair with a word of more characters is certainly too long in subwords, and dropped when it is encoded."""
        is_limited = self.length_unit == "subwords" and "too-long" not in self.keep and not self.codes
        return LONGEST_PIECE * self.max_length if self.max_length and is_limited else inf

    def table(self) -> dict[str, Any]:
        """Plain values for dataset.json."""
        paths = {name: [str(path) for path in getattr(self, name)] for name in ("tokenizer", "codes")}
        return {**asdict(self), **paths}
