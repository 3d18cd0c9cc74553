"""LibreTranslate's requests and answers, so that its clients work unchanged."""

from typing import Any

from starlette.types import Receive

from deepnmt.languages import language_name
from deepnmt.serving.batching import Options
from deepnmt.serving.connection import unless_gone
from deepnmt.serving.limits import RefusedError
from deepnmt.serving.markup import split_markup, texts_of, with_texts
from deepnmt.serving.models import ServedModel, Shelf
from deepnmt.serving.service import Service, whole_text
from deepnmt.serving.shapes import LibreTranslateRequest, checked, checked_texts


def languages(shelf: Shelf) -> list[dict[str, Any]]:
    return [{"code": code, "name": language_name(code), "targets": to} for code, to in shelf.languages().items()]


async def answer(service: Service, fields: dict[str, Any], receive: Receive) -> dict[str, Any]:
    """The answer to LibreTranslate's POST /translate; what is wrong with a request is a 400 there."""
    asked = checked(LibreTranslateRequest, fields, 400)
    queries = checked_texts(asked.q, service.limits)
    model = _model(service.shelf, asked)
    beam = max(Options.beam, asked.alternatives + 1)
    if beam > service.limits.max_beam:
        raise RefusedError(400, f"alternatives must be at most {service.limits.max_beam - 1}, not {asked.alternatives}")
    options = Options(beam=beam, nbest=asked.alternatives + 1)
    translated = await _translated(service, model, queries, options, asked.format == "html", receive)
    rows = [best for best, *_ in translated]
    others = [alternatives for _, *alternatives in translated]
    detected = {"confidence": 100.0, "language": model.source}
    one = isinstance(asked.q, str)
    table: dict[str, Any] = {"translatedText": rows[0] if one else rows}
    if asked.alternatives:
        table["alternatives"] = others[0] if one else others
    if asked.source == "auto":
        table["detectedLanguage"] = detected if one else [detected] * len(rows)
    return table


def _model(shelf: Shelf, asked: LibreTranslateRequest) -> ServedModel:
    try:
        model = shelf.pick(None, None if asked.source == "auto" else asked.source, asked.target)
    except RefusedError as refused:
        raise RefusedError(400, refused.message) from None
    sources = {other.source for other in shelf.models if other.target == model.target}
    if asked.source == "auto" and len(sources) > 1:
        raise RefusedError(400, f"source auto is not enough here; name one of {', '.join(sorted(sources))}")
    return model


async def _translated(
    service: Service, model: ServedModel, queries: list[str], options: Options, html: bool, receive: Receive
) -> list[list[str]]:
    """For each query its translation and the alternatives to it."""
    documents = [split_markup(query) if html else [(True, query)] for query in queries]
    texts = [texts_of(parts) if html else [query] for parts, query in zip(documents, queries, strict=True)]
    flat = [text for of_query in texts for text in of_query]
    with service.admitted(flat):
        sentences = iter(await unless_gone(receive, service.translate_all(model, flat, options)))
    results = []
    for parts, of_query in zip(documents, texts, strict=True):
        own = [next(sentences) for _ in of_query]
        ranked = [[whole_text(text, rank) for text in own] for rank in range(options.nbest)]
        results.append([with_texts(parts, row) if html else row[0] for row in ranked])
    return results
