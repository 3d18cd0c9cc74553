"""LibreTranslate's requests and answers, so that its clients work unchanged."""

import asyncio
from contextlib import suppress
from copy import copy
from functools import cache
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from deepnmt.decoding.documents.document import Document
from deepnmt.decoding.documents.html import read_html
from deepnmt.decoding.documents.prose import read_text
from deepnmt.languages import base_language, language_names
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.models import Models, ServedModel
from deepnmt.serving.responses import JsonAnswer, unless_gone
from deepnmt.serving.service import Service, off_loop
from deepnmt.serving.shapes import DetectionAnswer, LanguageAnswer, LibreTranslateRequest, checked_texts

EXAMINED = 2_000  # characters of a text whose language is detected


def languages(models: Models) -> list[LanguageAnswer]:
    table = models.languages()
    names = language_names(table)
    return [LanguageAnswer(code=code, name=names[code], targets=targets) for code, targets in table.items()]


def settings(models: Models, limits: Limits) -> dict[str, Any]:
    """As LibreTranslate's own page reads them; there are no keys, suggestions or file translations here."""
    sides = {"source": models[0].source, "target": models[0].target}
    names = language_names(models.languages())
    return {
        "apiKeys": False,
        "charLimit": limits.max_characters,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {side: {"code": code, "name": names[code]} for side, code in sides.items()},
        "suggestions": False,
        "supportedFilesFormat": [],
    }


async def detect(models: Models, texts: list[str]) -> DetectionAnswer:
    return await asyncio.to_thread(detect_language, models, " ".join(texts)[:EXAMINED])


def load_detection(models: Models) -> None:
    """Loading takes a second, which the first client should not wait for."""
    with suppress(RefusedError):
        detect_language(models, "Hello.")


def detect_language(models: Models, text: str) -> DetectionAnswer:
    """The most probable source language of these models, and its probability among them."""
    codes = {code: base_language(code) for model in models for code in model.choices[0]}
    if len(codes) == 1:
        return DetectionAnswer(confidence=100.0, language=next(iter(codes)))
    identifier = copy(_identifier())
    known = {*codes.values()} & {*identifier.labels}
    if not known:
        raise RefusedError(400, f"py3langid knows none of {', '.join(codes)}; name the source language")
    identifier.set_languages(known)
    best, probability = identifier.rank(text)[0]
    language = next(code for code, base in codes.items() if base == best)
    return DetectionAnswer(confidence=round(100 * float(probability), 1), language=language)


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        message = "language detection is unavailable: it needs py3langid (pip install 'deepnmt[langid]')"
        raise RefusedError(400, f"{message}; name the source language instead of auto") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


async def translate(service: Service, asked: LibreTranslateRequest, request: Request) -> Response:
    """The answer to LibreTranslate's POST /translate; an invalid request is a 400 there."""
    queries = checked_texts(asked.q, service.limits)
    if asked.alternatives >= service.limits.max_beam:
        most = service.limits.max_beam - 1
        raise RefusedError(400, f"alternatives must be at most {most}, not {asked.alternatives}")
    model, detected = await _model(service.models, asked, queries)
    html, nbest = asked.format == "html", asked.alternatives + 1
    terms = await model.glossary()
    plain, aligned = (model.options(nbest, alignments, terms=terms) for alignments in (False, True))
    service.admit(request.scope, queries, aligned if html else plain)
    size = sum(map(len, queries))
    read = read_html if html else read_text
    documents = await off_loop(size, lambda: [read(query, model.target) for query in queries])
    sentences = [(text, aligned if tags else plain) for document in documents for text, tags in document.sentences]
    found = iter(await unless_gone(request.receive, service.translate_all(model, sentences)))

    def written(document: Document) -> list[str]:
        """The translation of a query and the alternatives to it."""
        own = [next(found) for _ in document.sentences]
        ranked = ([h[min(rank, len(h) - 1)] for h in own] for rank in range(nbest))
        return [document.written(iter(hypotheses)) for hypotheses in ranked]

    rows = await off_loop(size, lambda: [written(document) for document in documents])
    one = isinstance(asked.q, str)
    table: dict[str, Any] = {"translatedText": rows[0][0] if one else [best for best, *_ in rows]}
    if asked.alternatives:
        table["alternatives"] = rows[0][1:] if one else [others for _, *others in rows]
    if detected is not None:
        table["detectedLanguage"] = detected.model_dump() if one else [detected.model_dump()] * len(rows)
    return JsonAnswer(await off_loop(size, to_json, table))


async def _model(
    models: Models, asked: LibreTranslateRequest, queries: list[str]
) -> tuple[ServedModel, DetectionAnswer | None]:
    """The model, and the language detected where the client left it to us."""
    try:
        if asked.source != "auto":
            return models.pick(None, asked.source, asked.target), None
        target = models.pick_target(asked.target)
    except RefusedError as refused:
        raise RefusedError(400, refused.message) from None
    detected = await detect(Models(model for model in models if target in model.choices[1]), queries)
    return models.pick(None, detected.language, target), detected
