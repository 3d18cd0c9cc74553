"""deepnmt's own requests: many texts, n-best lists, alignments, and answers that are streamed."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from deepnmt.decoding.documents.sentences import Sentence, fitted_gaps, split_sentences
from deepnmt.decoding.translator import Hypothesis
from deepnmt.serving.batch_queue import Hypotheses, Options, size_of
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.models import ServedModel
from deepnmt.serving.responses import JsonAnswer, LineStream, unless_gone
from deepnmt.serving.service import Service, off_loop
from deepnmt.serving.shapes import TranslateRequest, checked_terms, checked_texts


async def translate(service: Service, asked: TranslateRequest, request: Request) -> Response:
    texts = checked_texts(asked.text, service.limits)
    model = service.models.pick(asked.model, asked.source, asked.target)
    options = await _options(model, asked, service.limits)
    service.admit(request.scope, texts, options)
    split = await off_loop(sum(map(len, texts)), lambda: [split_sentences(text) for text in texts])
    if asked.stream:
        return LineStream(_lines(service, model, split, options))
    sentences = [(sentence.text, options) for sentences in split for sentence in sentences]
    found = await unless_gone(request.receive, service.translate_all(model, sentences))
    answer = await off_loop(sum(map(size_of, found)), _answer, model, split, found)
    return JsonAnswer(answer)


async def _options(model: ServedModel, asked: TranslateRequest, limits: Limits) -> Options:
    glossary = await model.glossary(checked_terms(asked.terms, limits))
    options = model.options(asked.nbest, asked.alignments, asked.beam, asked.length_penalty, glossary)
    for name, value in (("beam", asked.beam), ("nbest", asked.nbest)):
        if value is not None and value > limits.max_beam:
            raise RefusedError(422, f"{name} must be at most {limits.max_beam}, not {value}")
    if options.nbest > options.beam:
        raise RefusedError(422, f"nbest = {options.nbest} must be at most beam = {options.beam}")
    return options


def _head(model: ServedModel) -> dict[str, Any]:
    return {"model": model.name, "source": model.source, "target": model.target}


def _answer(model: ServedModel, split: list[list[Sentence]], answers: list[Hypotheses]) -> bytes:
    remaining = iter(answers)
    translations = []
    for sentences in split:
        own = [next(remaining) for _ in sentences]
        rows = list(zip(sentences, fitted_gaps(sentences, model.target), own, strict=True))
        text = "".join(hypotheses[0].text + gap for _, gap, hypotheses in rows)
        tables = [_sentence(sentence.text, gap, found) for sentence, gap, found in rows if sentence.text]
        translations.append({"text": text, "sentences": tables})
    return _json({**_head(model), "translations": translations})


async def _lines(
    service: Service, model: ServedModel, split: list[list[Sentence]], options: Options
) -> AsyncGenerator[bytes, None]:
    """The number of sentences, each sentence with the number of its text, and that all is done, or an error."""
    yield _json({**_head(model), "sentences": sum(map(len, split))}) + b"\n"
    places = [
        (number, sentence.text, gap)
        for number, sentences in enumerate(split)
        for sentence, gap in zip(sentences, fitted_gaps(sentences, model.target), strict=True)
    ]
    remaining = iter(places)
    try:
        async with aclosing(service.translate(model, ((text, options) for _, text, _ in places))) as stream:
            async for hypotheses in stream:
                number, text, gap = next(remaining)
                table = {"number": number, **_sentence(text, gap, hypotheses)}
                yield await off_loop(size_of(hypotheses), _json, table) + b"\n"
        yield _json({"done": True}) + b"\n"
    except RefusedError as refused:  # too late for a status
        yield _json({"error": refused.message}) + b"\n"


def _sentence(source: str, gap: str, hypotheses: Hypotheses) -> dict[str, Any]:
    best, *others = map(_hypothesis, hypotheses)
    table = {"source": source, **best, "gap": gap}
    return {**table, "alternatives": others} if others else table


def _hypothesis(hypothesis: Hypothesis) -> dict[str, Any]:
    table: dict[str, Any] = {"text": hypothesis.text, "score": round(hypothesis.score, 4)}
    if (found := hypothesis.alignment) is not None:
        table["alignment"] = {**vars(found), "links": found.links}
    return table


def _json(table: dict[str, Any]) -> bytes:
    """Weights become lists one matrix after the other, so that a long answer takes little memory besides its text."""
    return to_json(table, fallback=lambda weights: weights.astype(np.float64).round(3).tolist())
