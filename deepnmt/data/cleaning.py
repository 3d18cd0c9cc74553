"""Which training pairs are dropped, and the counts of why."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt.data.prepare_settings import REASONS, CleaningSettings
from deepnmt.errors import InputError
from deepnmt.languages import base_language

EXAMPLES_PER_REASON = 3
_EXAMPLE_CHARACTERS = 200
_LANGUAGE_CHARACTERS = 40  # shorter lines are not checked: the guess would be unreliable
# Tabs, line feeds and form feeds count as spaces; other control characters and U+FFFD are refused.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd]")

Keys = npt.NDArray[np.uint64]


@dataclass
class ReasonCounts:
    """Counts by reason, with the first examples of each as (where, source, target)."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)

    def add(self, reason: str, where: str, source: str, target: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES_PER_REASON:
            examples.append((where, source[:_EXAMPLE_CHARACTERS], target[:_EXAMPLE_CHARACTERS]))

    def merge(self, other: "ReasonCounts") -> None:
        for reason, count in other.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
            examples = self.examples.setdefault(reason, [])
            examples += other.examples[reason][: EXAMPLES_PER_REASON - len(examples)]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def table(self) -> dict[str, Any]:
        """Plain values for dataset.json, reasons in their usual order."""
        return {
            reason: {
                "meaning": REASONS[reason],
                "count": self.counts[reason],
                "examples": [
                    {"where": where, "source": source, "target": target}
                    for where, source, target in self.examples[reason]
                ],
            }
            for reason in REASONS
            if reason in self.counts
        }


class Judge:
    """Finds the reason to drop a pair of decoded lines; None if there is none."""

    def __init__(self, settings: CleaningSettings, languages: tuple[str, str]) -> None:
        self.keep = frozenset(settings.keep)
        self._check = _CHECKS[settings.language_check](languages)

    def __call__(self, source: str, target: str) -> str | None:
        if not (source and target) or source.isspace() or target.isspace():
            return "empty"
        if "control" not in self.keep and (_CONTROL.search(source) or _CONTROL.search(target)):
            return "control"
        if "identical" not in self.keep and source.strip() == target.strip():
            return "identical"
        return self._check(source, target)


Check = Callable[[str, str], str | None]


def _no_check(languages: tuple[str, str]) -> Check:
    return lambda source, target: None


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


def _script_check(languages: tuple[str, str]) -> Check:
    """At least a third of the letters of each side belong to the script of its language."""
    import regex  # type: ignore[import-untyped]

    def foreign(language: str) -> Callable[[str], bool]:
        scripts = _SCRIPT_OF.get(base_language(language))
        if scripts is None:
            raise InputError(
                f"the script of language {language!r} is not known here; leave out language_check = script"
            )
        letters = regex.compile(r"\p{L}")
        own = regex.compile("|".join(rf"[\p{{Script={script}}}&&\p{{L}}]" for script in scripts), regex.V1)
        return lambda text: 3 * len(own.findall(text)) < len(letters.findall(text))

    source_foreign, target_foreign = map(foreign, languages)
    return lambda source, target: "script" if source_foreign(source) or target_foreign(target) else None


def _language_check(languages: tuple[str, str]) -> Check:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise InputError("language_check = langid needs py3langid: pip install 'deepnmt[langid]'") from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    expected = [base_language(language) for language in languages]
    for language in expected:
        if language not in identifier.labels:
            raise InputError(f"py3langid does not know the language {language!r}; leave out language_check = langid")

    def wrong(text: str, language: str) -> bool:
        return len(text) >= _LANGUAGE_CHARACTERS and identifier.classify(text)[0] != language

    def check(source: str, target: str) -> str | None:
        return "language" if wrong(source, expected[0]) or wrong(target, expected[1]) else None

    return check


_CHECKS: dict[str, Callable[[tuple[str, str]], Check]] = {
    "none": _no_check,
    "script": _script_check,
    "langid": _language_check,
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
        """Add keys; True for each that is new, both in the set and in the batch so far."""
        fresh = np.zeros(len(batch), bool)
        _, first = np.unique(batch, return_index=True)
        fresh[first] = True
        for run in self._runs:
            fresh &= ~_contains(run, batch)
        self._insert(np.sort(batch[fresh]))
        return fresh

    def _insert(self, run: Keys) -> None:
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")
        if len(run):
            self._runs.append(run)

    def contains(self, batch: Keys) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(batch), bool)
        for run in self._runs:
            found |= _contains(run, batch)
        return found


def _contains(run: Keys, batch: Keys) -> npt.NDArray[np.bool_]:
    position = np.searchsorted(run, batch)
    position[position == len(run)] = 0
    return np.asarray(run[position] == batch)
