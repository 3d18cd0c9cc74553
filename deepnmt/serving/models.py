"""The models of a server: chosen by name or by languages, each with its queue and its cache of recent sentences."""

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from sys import getsizeof

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding.translator import Hypothesis, Translator
from deepnmt.errors import InputError
from deepnmt.languages import base_language
from deepnmt.serving.batch_queue import BatchQueue, Hypotheses, Options, size_of
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.prometheus import Metrics

ENTRY_BYTES = 600  # size of a cache entry without its texts


class TranslationCache:
    """The most recently used translations, at most `limit` bytes of them."""

    def __init__(self, limit: float) -> None:
        self.limit, self.size = limit, 0
        self._entries: OrderedDict[tuple[str, Options], tuple[Hypotheses, int]] = OrderedDict()

    def get(self, key: tuple[str, Options]) -> Hypotheses | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: tuple[str, Options], hypotheses: Hypotheses) -> None:
        if not self.limit or key in self._entries:
            return
        size = ENTRY_BYTES + getsizeof(key[0]) + size_of(hypotheses)
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
    ) -> None:
        self.name, self.translator = name, translator
        self.source, self.target = languages
        self.choices = choices or ([self.source], [self.target])
        self.metrics = metrics
        self.queue = BatchQueue(translator, name, limits, metrics)
        self.cache = TranslationCache(1e6 * limits.cache_megabytes)
        own = {name: value for name, value in translator.defaults.items() if name in vars(Options())}
        self._defaults = Options(**own)

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

    def options(
        self, nbest: int, alignments: bool, beam: int | None = None, length_penalty: float | None = None
    ) -> Options:
        """None: the model's own setting. A beam that the request does not set grows to hold the n best."""
        own = self._defaults
        return Options(
            beam=max(own.beam, nbest) if beam is None else beam,
            length_penalty=own.length_penalty if length_penalty is None else length_penalty,
            nbest=nbest,
            alignments=alignments,
            languages=(self.source, self.target) if self.is_multilingual else None,
        )

    async def translate(self, text: str, options: Options) -> Hypotheses:
        if not any(map(str.isalnum, text)):
            return [Hypothesis(text, 0.0, 0.0, [])]  # a rule, a bullet, a row of dots: nothing to translate
        if (found := self.cache.get((text, options))) is not None:
            self.metrics.add("deepnmt_cached_sentences_total", model=self.name)
            return found
        found = await self.queue.submit(text, options)
        self.cache.put((text, options), found)
        return found


class Models(list[ServedModel]):
    """All models of a server; the first serves requests that name none."""

    def pick(self, name: str | None, source: str | None, target: str | None) -> ServedModel:
        named = [model for model in self if name is None or name == model.name]
        for fits in (_is, _covers):
            for model in named:
                sources, targets = [model.source, *model.choices[0]], [model.target, *model.choices[1]]
                found = [
                    next((code for code in codes if fits(asked, code)), None)
                    for asked, codes in ((source, sources), (target, targets))
                ]
                if found[0] is not None and found[1] is not None:
                    return model.for_languages(found[0], found[1])
        asked = (("model", name), ("source", source), ("target", target))
        wanted = " ".join(f"{what} {shortened(value)!r}" for what, value in asked if value is not None)
        offered = ", ".join(model.described() for model in self)
        raise RefusedError(422, f"no model for {wanted}; available: {offered}")

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


def _is(asked: str | None, served: str) -> bool:
    return asked is None or asked.lower() == served.lower()


def _covers(asked: str | None, served: str) -> bool:
    """en serves en-GB, and en-GB serves en."""
    if asked is None:
        return True
    asked_base, served_base = map(base_language, (asked, served))
    return asked_base == served_base and (asked.lower() == asked_base or served.lower() == served_base)


def shortened(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:40]}…"


def load_models(
    names: Sequence[str], device: str, precision: str, limits: Limits, metrics: Metrics, shortlist: bool = False
) -> Models:
    """Each name is FOLDER or NAME=FOLDER; without a name, a model is called by its folder's name."""
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
    return Models(
        ServedModel(name, _languages(pair), translator, limits, metrics, pair.languages)
        for name, translator in translators.items()
        for pair in translator.tokenizers
    )


def _languages(pair: TokenizerPair) -> tuple[str, str]:
    """The languages of a pair; where it does not fix them, preferably from English to the first other language."""
    sources, targets = pair.languages
    source, target = pair.source.language, pair.target.language
    if source not in sources:
        source = next((code for code in sources if base_language(code) == "en"), sources[0])
    if target not in targets:
        target = next((code for code in targets if code != source), targets[0])
    return source, target
