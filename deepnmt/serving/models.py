"""The models of a server: chosen by name or by languages, each with its queue, cache and glossaries."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace

from deepnmt.decoding.glossary import Glossary
from deepnmt.decoding.translator import Hypothesis, Translator
from deepnmt.languages import base_language
from deepnmt.serving.batch_queue import BatchQueue, Hypotheses, Options
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.prometheus import Metrics
from deepnmt.serving.terms import Glossaries, Pairs, TermsFile
from deepnmt.serving.translation_cache import TranslationCache
from deepnmt.text import shortened


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
        terms: Sequence[TermsFile] = (),
    ) -> None:
        self.name, self.translator = name, translator
        self.source, self.target = languages
        self.choices = choices or ([self.source], [self.target])
        self.metrics = metrics
        self.cache = TranslationCache(1e6 * limits.cache_megabytes)
        own = {name: value for name, value in translator.defaults.items() if name in vars(Options())}
        self._defaults = Options(**own)
        self.queue = BatchQueue(translator, name, limits, metrics, self.options(nbest=1, alignments=False))
        self.glossaries = Glossaries(translator, self.is_multilingual, terms, limits.max_term_subwords)

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
        """The same model, with the same queue, cache and glossaries, for a pair of its languages."""
        if (source, target) == (self.source, self.target):
            return self
        other = copy(self)
        other.source, other.target = source, target
        return other

    async def glossary(self, own: Pairs = ()) -> Glossary | None:
        return await self.glossaries.find(self.source, self.target, own)

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
