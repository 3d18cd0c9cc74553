"""Glossaries: the server's own, from files, and on top of them those that requests bring."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from deepnmt.decoding.glossary import Glossary, lower_case, read_terms
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError
from deepnmt.languages import base_language
from deepnmt.serving.limits import RefusedError

KEPT = 32  # glossaries of recent requests, and of recent pairs of languages, for each model
Pairs = tuple[tuple[str, str], ...]  # terms and their translations


@dataclass(frozen=True)
class TermsFile:
    """A glossary of the server: for all languages, or for one pair, such as en-de."""

    languages: str
    terms: dict[str, str]

    @classmethod
    def read(cls, given: str) -> "TermsFile":
        """From FILE or SOURCE-TARGET=FILE."""
        languages, _, path = given.partition("=")
        if not path or Path(given).is_file():
            languages, path = "", given
        return cls(languages, read_terms(path))

    def serves(self, source: str, target: str) -> bool:
        pairs = f"{source}-{target}", f"{base_language(source)}-{base_language(target)}"
        return not self.languages or self.languages.lower() in map(str.lower, pairs)


class Glossaries:
    """The glossaries of one model, each encoded once for many requests."""

    def __init__(
        self, translator: Translator, is_multilingual: bool, files: Sequence[TermsFile], max_subwords: int
    ) -> None:
        self.translator, self.is_multilingual = translator, is_multilingual
        self.max_subwords = max_subwords
        # Files for one pair of languages take precedence over files for all: they come last.
        self.files = sorted(files, key=lambda file: bool(file.languages))
        self.of_files = lru_cache(KEPT)(self._from_files)
        self._of_request = lru_cache(KEPT)(self._extended)

    async def find(self, source: str, target: str, own: Pairs = ()) -> Glossary | None:
        """The terms of the server for these languages, and those of a request, which take precedence."""
        if not own and not self.files:
            return None
        get, arguments = (self._of_request, (own,)) if own else (self.of_files, ())
        try:
            return await asyncio.to_thread(get, source, target, *arguments)
        except InputError as error:
            raise RefusedError(422, str(error)) from None

    def encoded(self, terms: dict[str, str], source: str, target: str) -> Glossary:
        translator = self.translator.for_languages(source, target) if self.is_multilingual else self.translator
        return translator.glossary(terms, self.max_subwords)

    def _from_files(self, source: str, target: str) -> Glossary | None:
        serving = (file.terms.items() for file in self.files if file.serves(source, target))
        terms = {lower_case(term): text for pairs in serving for term, text in pairs}
        return self.encoded(terms, source, target) if terms else None

    def _extended(self, source: str, target: str, own: Pairs) -> Glossary:
        base = self.of_files(source, target) or self.encoded({}, source, target)
        return base.extended(own)
