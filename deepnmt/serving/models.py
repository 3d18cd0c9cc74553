"""The models of a server: chosen by name or by languages, each with its queue and its cache of recent sentences."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from sys import getsizeof

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding.glossary import Glossary, read_terms
from deepnmt.decoding.translator import Hypothesis, Translator
from deepnmt.errors import InputError
from deepnmt.languages import base_language
from deepnmt.serving.batch_queue import BatchQueue, Hypotheses, Options, size_of
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.prometheus import Metrics

ENTRY_BYTES = 600  # size of a cache entry without its texts
KEPT_GLOSSARIES = 32  # for each model, of recent requests, and of recent pairs of languages
Pairs = tuple[tuple[str, str], ...]  # terms and their translations
Key = tuple[str, Options, Pairs]  # of a translation: the sentence, and the request's own terms that it may contain


class TranslationCache:
    """The most recently used translations, at most `limit` bytes of them."""

    def __init__(self, limit: float) -> None:
        self.limit, self.size = limit, 0
        self._entries: OrderedDict[Key, tuple[Hypotheses, int]] = OrderedDict()

    def get(self, key: Key) -> Hypotheses | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Key, hypotheses: Hypotheses) -> None:
        if not self.limit or key in self._entries:
            return
        texts = [key[0], *chain.from_iterable(key[2])]
        size = ENTRY_BYTES + sum(map(getsizeof, texts)) + size_of(hypotheses)
        if size > self.limit:
            return
        self._entries[key] = hypotheses, size
        self.size += size
        while self.size > self.limit:
            _, (_, freed) = self._entries.popitem(last=False)
            self.size -= freed


class ServedModel:
    """A translator with a queue and a cache.

    `choices` are all source and all target languages of a model that has several; `source` and `target` are a pair of
    them.
    """

    def __init__(
        self,
        name: str,
        languages: tuple[str, str],
        translator: Translator,
        limits: Limits,
        metrics: Metrics,
        choices: tuple[list[str], list[str]] | None = None,
        terms: Sequence["ServedTerms"] = (),
    ) -> None:
        self.name, self.translator = name, translator
        self.source, self.target = languages
        self.choices = choices or ([self.source], [self.target])
        self.metrics = metrics
        self.cache = TranslationCache(1e6 * limits.cache_megabytes)
        own = {name: value for name, value in translator.defaults.items() if name in vars(Options())}
        self._defaults = Options(**own)
        self.queue = BatchQueue(translator, name, limits, metrics, self.options(nbest=1, alignments=False))
        self._terms, self._limits = terms, limits
        # Copies for other languages share these.
        self._of_server = lru_cache(KEPT_GLOSSARIES)(self._server_glossary)
        self._of_request = lru_cache(KEPT_GLOSSARIES)(self._request_glossary)

    @property
    def is_multilingual(self) -> bool:
        return max(map(len, self.choices)) > 1

    def described(self) -> str:
        """The name and the languages."""
        if not self.is_multilingual:
            return f"{self.name} ({self.source} to {self.target})"
        counts = (f"{len(codes)} languages" if len(codes) > 1 else codes[0] for codes in self.choices)
        return f"{self.name} ({' to '.join(counts)})"

    def for_languages(self, source: str, target: str) -> "ServedModel":
        """The same model, with the same queue and cache, for a pair of its languages."""
        if (source, target) == (self.source, self.target):
            return self
        other = copy(self)
        other.source, other.target = source, target
        return other

    async def glossary(self, own: Pairs = ()) -> Glossary | None:
        """The terms of the server for these languages, and those of a request, which take precedence."""
        if not own and not self._terms:
            return None
        get, arguments = (self._of_request, (own,)) if own else (self._of_server, ())
        try:
            return await asyncio.to_thread(get, self.source, self.target, *arguments)
        except InputError as error:
            raise RefusedError(422, str(error)) from None

    def _request_glossary(self, source: str, target: str, own: Pairs) -> Glossary:
        base = self._of_server(source, target) or self.encoded({}, source, target)
        return base.extended(own)

    def _server_glossary(self, source: str, target: str) -> Glossary | None:
        """Of files for these languages alone and files for all, the former take precedence."""
        files = sorted(self._terms, key=lambda each: bool(each.languages))
        terms = {
            term.lower(): text for each in files if each.serve(source, target) for term, text in each.terms.items()
        }
        return self.encoded(terms, source, target) if terms else None

    def encoded(self, terms: dict[str, str], source: str, target: str) -> Glossary:
        """A glossary for a pair of the model's languages."""
        translator = self.translator.for_languages(source, target) if self.is_multilingual else self.translator
        return translator.glossary(terms, self._limits.max_term_subwords)

    def options(
        self,
        nbest: int,
        alignments: bool,
        beam: int | None = None,
        length_penalty: float | None = None,
        terms: Glossary | None = None,
    ) -> Options:
        """None: the model's own setting. A beam that the request does not set grows to hold the n best."""
        own = self._defaults
        return Options(
            beam=max(own.beam, nbest) if beam is None else beam,
            length_penalty=own.length_penalty if length_penalty is None else length_penalty,
            nbest=nbest,
            alignments=alignments,
            languages=(self.source, self.target) if self.is_multilingual else None,
            terms=terms,
        )

    async def translate(self, text: str, options: Options) -> Hypotheses:
        is_same = self.is_multilingual and self.source == self.target
        if is_same or not any(map(str.isalnum, text)):  # a rule, a bullet, a row of dots
            return [Hypothesis(text, 0.0, 0.0, [])]
        own: Pairs = ()
        if options.terms and (base := options.terms.base) and not (own := options.terms.own_in(text)):
            options = replace(options, terms=base if base.terms else None)  # like the sentences of other requests
        key = text, replace(options, terms=None), own
        if (found := self.cache.get(key)) is not None:
            self.metrics.add("deepnmt_cached_sentences_total", model=self.name)
            return found
        found = await self.queue.submit(text, options)
        self.cache.put(key, found)
        return found


@dataclass(frozen=True)
class ServedTerms:
    """A glossary of the server: for all languages, or for one pair, such as en-de."""

    languages: str
    terms: dict[str, str]

    def serve(self, source: str, target: str) -> bool:
        pairs = f"{source}-{target}", f"{base_language(source)}-{base_language(target)}"
        return not self.languages or self.languages.lower() in map(str.lower, pairs)

    @classmethod
    def read(cls, given: str) -> "ServedTerms":
        """From FILE or SOURCE-TARGET=FILE."""
        languages, _, path = given.partition("=")
        if not path or Path(given).is_file():
            languages, path = "", given
        return cls(languages, read_terms(path))


class Models(list[ServedModel]):
    """All models of a server; the first serves requests that name none."""

    def pick(self, name: str | None, source: str | None, target: str | None) -> ServedModel:
        """The model for these languages. A language that is not named is the model's default one; if that is the other
        side's already, the one that remains, or else the request is refused."""
        unclear = ""
        for fits in (_is, _covers):
            for model in self:
                if name is not None and name != model.name:
                    continue
                sources = _fitting(fits, source, [model.source, *model.choices[0]])
                targets = _fitting(fits, target, [model.target, *model.choices[1]])
                if not sources or not targets:
                    continue
                first = (sources[0], targets[0])
                if first[0] != first[1] or not model.is_multilingual or (source is None) == (target is None):
                    return model.for_languages(*first)
                others = {code for code in (sources if source is None else targets) if code != first[0]}
                if len(others) == 1:
                    pair = (*others, first[1]) if source is None else (first[0], *others)
                    return model.for_languages(*pair)
                if others:
                    side = "source" if source is None else "target"
                    unclear = f"name the {side} language too: {model.name} has {len(others)} others than {first[0]}"
        raise RefusedError(422, unclear or self._not_served(name, source, target))

    def pick_target(self, asked: str) -> str:
        """The code of this target language, whatever the source."""
        for fits in (_is, _covers):
            for model in self:
                if found := _fitting(fits, asked, [model.target, *model.choices[1]]):
                    return found[0]
        raise RefusedError(422, self._not_served(None, None, asked))

    def _not_served(self, name: str | None, source: str | None, target: str | None) -> str:
        asked = (("model", name), ("source", source), ("target", target))
        wanted = " ".join(f"{what} {shortened(value)!r}" for what, value in asked if value is not None)
        offered = ", ".join(model.described() for model in self)
        return f"no model for {wanted}; available: {offered}"

    def languages(self) -> dict[str, list[str]]:
        """Each source language and its targets; a language that is only a target has none."""
        table: dict[str, list[str]] = {}
        for model in self:
            sources, targets = model.choices
            for source in sources:
                others = [target for target in targets if target != source or not model.is_multilingual]
                table[source] = [*dict.fromkeys([*table.get(source, []), *others])]
        return table | {target: [] for model in self for target in model.choices[1] if target not in table}

    def close(self) -> bool:
        """False: a model is still busy."""
        closed = [model.queue.close() for model in self]
        return all(closed)


def _fitting(fits: Callable[[str | None, str], bool], asked: str | None, codes: Sequence[str]) -> list[str]:
    """The codes that fit, exact ones first."""
    return sorted((code for code in codes if fits(asked, code)), key=lambda code: not _is(asked, code))


def _is(asked: str | None, served: str) -> bool:
    return asked is None or asked.lower() == served.lower()


def _covers(asked: str | None, served: str) -> bool:
    """en serves en-GB, and en-GB serves en."""
    if asked is None or _is(asked, served):
        return True
    asked_base, served_base = map(base_language, (asked, served))
    return asked_base == served_base and (asked.lower() == asked_base or served.lower() == served_base)


def shortened(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:40]}…"


def load_models(
    names: Sequence[str],
    device: str,
    precision: str,
    limits: Limits,
    metrics: Metrics,
    shortlist: bool = False,
    terms: Sequence[str] = (),
) -> Models:
    """Each name is FOLDER or NAME=FOLDER; without a name, a model is called by its folder's name. Each of the terms is
    FILE or SOURCE-TARGET=FILE."""
    glossaries = [ServedTerms.read(given) for given in terms]
    folders: dict[str, Path] = {}
    for given in names:
        name, _, path = given.partition("=")
        folder = Path(given if Path(given).is_dir() or not path else path)  # runs/lr=3/model is a folder
        name = name if name and folder == Path(path) else folder.resolve().name
        if not folder.is_dir():
            raise InputError(f"{folder} is not a MODEL folder")
        if name in folders:
            raise InputError(f"two models are called {name}: rename one, as in other={folder}")
        folders[name] = folder
    translators = {name: Translator(folder, device, precision, shortlist) for name, folder in folders.items()}
    models = Models(
        ServedModel(name, _languages(pair), translator, limits, metrics, pair.languages, glossaries)
        for name, translator in translators.items()
        for pair in translator.tokenizers
    )
    for given, glossary in zip(terms, glossaries, strict=True):
        _check_terms(given, glossary, models)
    return models


def _check_terms(given: str, glossary: ServedTerms, models: Models) -> None:
    """Refuse terms for languages that are not served, or which the models cannot spell."""
    is_served = False
    for model in models:
        sources, targets = [model.source, *model.choices[0]], [model.target, *model.choices[1]]
        pairs = ((source, target) for source in sources for target in targets if glossary.serve(source, target))
        for source, target in islice(pairs, 1):
            is_served = True
            try:
                model.encoded(glossary.terms, source, target)
            except InputError as error:
                raise InputError(f"{given}: {error}") from None
    if not is_served:
        raise InputError(f"--terms {given}: no model translates {glossary.languages}")


def _languages(pair: TokenizerPair) -> tuple[str, str]:
    """The languages of a pair; where it does not fix them, preferably from English to the first other language."""
    sources, targets = pair.languages
    if pair.source.language in sources:
        sources = [pair.source.language]
    if pair.target.language in targets:
        targets = [pair.target.language]
    sources = sorted(sources, key=lambda code: base_language(code) != "en")
    pairs = ((source, target) for source in sources for target in targets if source != target)
    return next(pairs, (sources[0], targets[0]))
