"""LibreTranslate's requests and answers, so that its clients work unchanged."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from deepnmt.languages import language_name
from deepnmt.serving.detection import detect_language
from deepnmt.serving.hypotheses import ServedHypothesis
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.markup import MarkupText
from deepnmt.serving.models import Models, ServedModel
from deepnmt.serving.responses import unless_gone
from deepnmt.serving.sentences import fitted_gaps, split_sentences
from deepnmt.serving.service import Service, off_loop
from deepnmt.serving.shapes import LibreTranslateRequest, checked, checked_texts


def languages(models: Models) -> list[dict[str, Any]]:
    return [{"code": code, "name": language_name(code), "targets": to} for code, to in models.languages().items()]


def settings(models: Models, limits: Limits) -> dict[str, Any]:
    """As LibreTranslate's own page reads them; there are no keys, suggestions or file translations here."""
    sides = {"source": models[0].source, "target": models[0].target}
    return {
        "apiKeys": False,
        "charLimit": limits.max_characters,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {side: {"code": code, "name": language_name(code)} for side, code in sides.items()},
        "suggestions": False,
        "supportedFilesFormat": [],
    }


async def detect(models: Models, texts: list[str]) -> list[dict[str, Any]]:
    sources = [model.source for model in models]
    language, confidence = await asyncio.to_thread(detect_language, " ".join(texts), sources)
    return [{"confidence": confidence, "language": language}]


async def load_detection(models: Models) -> None:
    """Loading takes seconds, which the first client should not wait for."""
    with suppress(RefusedError):
        await detect(models, ["Hello."])


async def translate(service: Service, fields: dict[str, Any], receive: Receive) -> Response:
    """The answer to LibreTranslate's POST /translate; an invalid request is a 400 there."""
    asked = checked(LibreTranslateRequest, fields, 400, service.limits)
    queries = checked_texts(asked.q, service.limits)
    if asked.alternatives >= service.limits.max_beam:
        most = service.limits.max_beam - 1
        raise RefusedError(400, f"alternatives must be at most {most}, not {asked.alternatives}")
    model, detected = await _model(service.models, asked, queries)
    rows = await _translated(service, model, queries, asked.alternatives + 1, asked.format == "html", receive)
    one = isinstance(asked.q, str)
    table: dict[str, Any] = {"translatedText": rows[0][0] if one else [best for best, *_ in rows]}
    if asked.alternatives:
        table["alternatives"] = rows[0][1:] if one else [others for _, *others in rows]
    if detected is not None:
        table["detectedLanguage"] = detected if one else [detected] * len(rows)
    return JSONResponse(table)


async def _model(
    models: Models, asked: LibreTranslateRequest, queries: list[str]
) -> tuple[ServedModel, dict[str, Any] | None]:
    """The model, and the language detected where the client left it to us."""
    try:
        if asked.source != "auto":
            return models.pick(None, asked.source, asked.target), None
        target = models.pick(None, None, asked.target).target
    except RefusedError as refused:
        raise RefusedError(400, refused.message) from None
    (detected,) = await detect(Models(model for model in models if model.target == target), queries)
    return models.pick(None, detected["language"], target), detected


async def _translated(
    service: Service, model: ServedModel, queries: list[str], nbest: int, html: bool, receive: Receive
) -> list[list[str]]:
    """For each query its translation and the alternatives to it."""
    plain, aligned = (
        model.options(beam=None, length_penalty=None, nbest=nbest, alignments=alignments)
        for alignments in (False, True)
    )
    size = sum(map(len, queries))
    leave = service.admit(queries, aligned if html else plain)
    try:
        documents = await off_loop(size, lambda: [(MarkupText if html else PlainText)(query) for query in queries])
        sentences = [
            (text, aligned if has_tags else plain) for document in documents for text, has_tags in document.sentences
        ]
        found = iter(await unless_gone(receive, service.translate_all(model, sentences)))

        def written(document: MarkupText | PlainText) -> list[str]:
            own = [next(found) for _ in document.sentences]
            ranked = ([h[min(rank, len(h) - 1)] for h in own] for rank in range(nbest))
            return [document.written(hypotheses, model.target) for hypotheses in ranked]

        return await off_loop(size, lambda: [written(document) for document in documents])
    finally:
        leave()


class PlainText:
    """A text as its sentences. Law: with every sentence translated as itself, it is the text."""

    def __init__(self, text: str) -> None:
        self._split = split_sentences(text)

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return [(sentence.text, False) for sentence in self._split]

    def written(self, hypotheses: Sequence[ServedHypothesis], language: str) -> str:
        gaps = fitted_gaps(self._split, language)
        return "".join(hypothesis.text + gap for hypothesis, gap in zip(hypotheses, gaps, strict=True))
