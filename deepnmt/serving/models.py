"""The models of a server: found by name or by languages, each with its queue and its memory of recent sentences."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError
from deepnmt.serving.batching import BatchQueue, Found, Options
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.metrics import Metrics


class ServedModel:
    """A translator behind a queue. `translator` needs no more than `Translator.translate_nbest`."""

    def __init__(
        self, name: str, languages: tuple[str, str], translator: Any, limits: Limits, metrics: Metrics
    ) -> None:
        self.name, self.translator = name, translator
        self.source, self.target = languages
        self.metrics = metrics
        self.queue = BatchQueue(translator, name, limits, metrics)
        self._memory: OrderedDict[tuple[str, Options], Found] = OrderedDict()
        self._memory_size = limits.cache_sentences

    def translate(self, text: str, options: Options) -> "asyncio.Future[Found]":
        key = (text, options)
        if (found := self._memory.get(key)) is not None:
            self._memory.move_to_end(key)
            self.metrics.remembered.add(model=self.name)
            answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
            answer.set_result(found)
            return answer
        answer = self.queue.submit(text, options)
        if self._memory_size:
            answer.add_done_callback(lambda done: self._remember(key, done))
        return answer

    def _remember(self, key: tuple[str, Options], answer: "asyncio.Future[Found]") -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        self._memory[key] = answer.result()
        while len(self._memory) > self._memory_size:
            self._memory.popitem(last=False)

    def about(self) -> dict[str, Any]:
        return {"name": self.name, "source": self.source, "target": self.target}

    def connections(self) -> dict[str, Any]:
        """For each stack its scheme and the weights of earlier layers (columns) in later ones (rows), if learned."""
        model = self.translator.models[0]
        table: dict[str, Any] = {}
        for side in ("encoder", "decoder"):
            stack, config = getattr(model, side), getattr(model.config, side)
            matrix = stack.connection.matrix()
            table[side] = {
                "kind": config.connection.kind,
                "num_layers": config.num_layers,
                "matrix": None if matrix is None else [[round(v, 5) for v in row] for row in matrix.tolist()],
            }
        return table


class Shelf:
    """All models of a server; the first is the one for requests that name none."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models = list(models)

    def pick(self, name: str | None, source: str | None, target: str | None) -> ServedModel:
        named = [model for model in self.models if name is None or name == model.name]
        for fits in (_is, _speaks):
            for model in named:
                if fits(source, model.source) and fits(target, model.target):
                    return model
        wanted = " ".join(f"{what} {value!r}" for what, value in _named(name, source, target))
        offered = ", ".join(f"{model.name} ({model.source} to {model.target})" for model in self.models)
        raise RefusedError(422, f"no model for {wanted}; there is {offered}")

    def languages(self) -> dict[str, list[str]]:
        """Each source language and what it can be translated to; a language that is only a target has none."""
        table: dict[str, list[str]] = {}
        for model in self.models:
            targets = table.setdefault(model.source, [])
            if model.target not in targets:
                targets.append(model.target)
        for model in self.models:
            table.setdefault(model.target, [])
        return table

    def close(self) -> None:
        for model in self.models:
            model.queue.close()


def _is(asked: str | None, spoken: str) -> bool:
    return asked is None or asked.lower() == spoken.lower()


def _speaks(asked: str | None, spoken: str) -> bool:
    """en-GB may be served by en, and en by en-GB."""
    if asked is None:
        return True
    asked_base, spoken_base = (language.lower().replace("_", "-").split("-")[0] for language in (asked, spoken))
    return asked_base == spoken_base and (asked.lower() == asked_base or spoken.lower() == spoken_base)


def _named(name: str | None, source: str | None, target: str | None) -> list[tuple[str, str]]:
    pairs = (("model", name), ("source", source), ("target", target))
    return [(what, _short(value)) for what, value in pairs if value is not None]


def _short(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:40]}…"


def load_models(names: Sequence[str], device: str, precision: str, limits: Limits, metrics: Metrics) -> Shelf:
    """From FOLDER or NAME=FOLDER each; a folder alone is called by its own name."""
    folders: dict[str, Path] = {}
    for given in names:
        name, equals, path = given.partition("=")
        folder = Path(path if equals else given)
        name = name if equals else folder.resolve().name
        if not folder.is_dir():
            raise InputError(f"{folder} is not a MODEL folder")
        if name in folders:
            raise InputError(f"two models are called {name}: give one another name, as in other={folder}")
        folders[name] = folder
    translators = {name: Translator(folder, device=device, precision=precision) for name, folder in folders.items()}
    return Shelf(
        [
            ServedModel(name, _languages(translator), translator, limits, metrics)
            for name, translator in translators.items()
        ]
    )


def _languages(translator: Translator) -> tuple[str, str]:
    pair = translator.tokenizers[0]
    return pair.source.writing.language, pair.target.writing.language
