"""The reasons to drop a training pair, and their counts."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt.data.prepare_settings import REASONS, CleaningSettings
from deepnmt.errors import InputError
from deepnmt.languages import base_language

EXAMPLES_PER_REASON = 3
_EXAMPLE_CHARACTERS = 200
_LANGUAGE_CHARACTERS = 40  # langid is unreliable on shorter lines, so they are not checked
# Tabs, line feeds and form feeds count as spaces; other control characters and U+FFFD are refused.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd]")

Keys = npt.NDArray[np.uint64]


@dataclass
class ReasonCounts:
    """Counts by reason, with the first examples of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def add(self, reason: str, where: str, source: str, target: str) -> None:
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES_PER_REASON:
            texts = {"source": source[:_EXAMPLE_CHARACTERS], "target": target[:_EXAMPLE_CHARACTERS]}
            examples.append({"where": where, **texts})

    def merge(self, other: "ReasonCounts") -> int:
        """Add the counts and examples of another, and return the sum of its counts."""
        self.counts.update(other.counts)
        for reason, further in other.examples.items():
            examples = self.examples.setdefault(reason, [])
            examples += further[: EXAMPLES_PER_REASON - len(examples)]
        return other.counts.total()

    def table(self) -> dict[str, Any]:
        """The entry of dataset.json."""
        return {
            reason: {"meaning": meaning, "count": self.counts[reason], "examples": self.examples[reason]}
            for reason, meaning in REASONS.items()
            if reason in self.counts
        }


class Judge:
    """Returns the reason to drop a pair of decoded lines, or None."""

    def __init__(self, settings: CleaningSettings, languages: Sequence[str]) -> None:
        self.keep, self._made_of = frozenset(settings.keep), (settings, languages)
        self._foreign_reason, check = _LANGUAGE_CHECKS.get(settings.language_check, ("", None))
        self._is_foreign = [check(language) for language in languages] if check else None
        if self._foreign_reason in self.keep:
            self._is_foreign = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Judge, self._made_of

    def __call__(self, source: str, target: str) -> str | None:
        if not (source and target) or source.isspace() or target.isspace():
            return "empty"
        if "control" not in self.keep and (_CONTROL.search(source) or _CONTROL.search(target)):
            return "control"
        if "identical" not in self.keep and source.strip() == target.strip():
            return "identical"
        if self._is_foreign and (self._is_foreign[0](source) or self._is_foreign[1](target)):
            return self._foreign_reason
        return None


_SCRIPTS = {
    "Latin": "en de fr es it pt nl sv da no nb nn fi et lv lt pl cs sk sl hr hu ro tr az sq ca gl eu is ga cy mt id ms"
    " tl vi sw af lb eo la",
    "Cyrillic": "ru uk be bg mk sr kk ky mn tg",
    "Greek": "el",
    "Arabic": "ar fa ur ps ug",
    "Hebrew": "he yi",
    "Devanagari": "hi mr ne sa",
    "Bengali": "bn as",
    "Tamil": "ta",
    "Telugu": "te",
    "Thai": "th",
    "Georgian": "ka",
    "Armenian": "hy",
    "Hangul": "ko",
    "Han": "zh",
    "Han Hiragana Katakana": "ja",
}
_SCRIPT_OF = {language: scripts.split() for scripts, languages in _SCRIPTS.items() for language in languages.split()}


def _foreign_script(language: str) -> Callable[[str], bool]:
    """True if fewer than a third of the letters are in the script of the language."""
    import regex  # type: ignore[import-untyped]

    scripts = _SCRIPT_OF.get(base_language(language))
    if scripts is None:
        raise InputError(f"language_check = script does not support {language!r}; use none or langid")
    letters = regex.compile(r"\p{L}")
    own = regex.compile("|".join(rf"[\p{{Script={script}}}&&\p{{L}}]" for script in scripts), regex.V1)
    return lambda text: 3 * len(own.findall(text)) < len(letters.findall(text))


def _foreign_language(language: str) -> Callable[[str], bool]:
    identifier, expected = _identifier(), base_language(language)
    if expected not in identifier.labels:
        raise InputError(f"language_check = langid does not support {expected!r}; use none or script")
    return lambda text: len(text) >= _LANGUAGE_CHARACTERS and identifier.classify(text)[0] != expected


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise InputError("language_check = langid needs py3langid: pip install 'deepnmt[langid]'") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE)


_LANGUAGE_CHECKS: dict[str, tuple[str, Callable[[str], Callable[[str], bool]]]] = {
    "script": ("script", _foreign_script),
    "langid": ("language", _foreign_language),
}


def keys(lines: Iterable[bytes]) -> Keys:
    """A 64-bit hash of each line; the chance of any collision among ten million lines is one in 370,000."""
    return np.frombuffer(b"".join(blake2b(line, digest_size=8).digest() for line in lines), np.uint64)


def pair_keys(source: Keys, target: Keys) -> Keys:
    return source * np.uint64(0x9E3779B97F4A7C15) ^ target


class SeenKeys:
    """A set of keys, eight bytes each: sorted arrays, merged when they reach similar sizes (log-structured)."""

    def __init__(self) -> None:
        self._runs: list[Keys] = []

    def add(self, batch: Keys) -> npt.NDArray[np.bool_]:
        """Add keys; return True for each that is new to the set and to the batch so far."""
        fresh = np.zeros(len(batch), bool)
        fresh[np.unique(batch, return_index=True)[1]] = True
        for run in self._runs:
            fresh &= run[np.searchsorted(run, batch) % len(run)] != batch
        run = np.sort(batch[fresh])
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")
        if len(run):
            self._runs.append(run)
        return fresh
