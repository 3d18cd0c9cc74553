"""The HTTP application: its routes, and every error as JSON."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from deepnmt import __version__
from deepnmt.serving import libretranslate
from deepnmt.serving.batching import Options
from deepnmt.serving.bodies import FORM, MULTIPART, read_fields
from deepnmt.serving.hypotheses import Hypotheses, sentence_json, size_of
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.metrics import Metrics
from deepnmt.serving.models import Models, ServedModel
from deepnmt.serving.responses import STREAM_TYPE, CountedRequests, JsonAnswer, LineStream, unless_gone
from deepnmt.serving.sentences import Sentence, fitted_gaps, split_sentences
from deepnmt.serving.service import Service, off_loop
from deepnmt.serving.shapes import (
    ConnectionsAnswer,
    DetectionAnswer,
    DetectRequest,
    ErrorAnswer,
    HealthAnswer,
    LanguageAnswer,
    LibreTranslateAnswer,
    LibreTranslateRequest,
    ModelAnswer,
    TranslateAnswer,
    TranslateRequest,
    checked,
    checked_texts,
)

PAGE = Path(__file__).parent / "page"
# The page, its scripts and its styles come from this server and from nowhere else.
SAFETY = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The body cannot be read, or a LibreTranslate request is invalid."},
    408: {"model": ErrorAnswer, "description": "The body did not arrive in time."},
    413: {"model": ErrorAnswer, "description": "Too much for one request."},
    415: {"model": ErrorAnswer, "description": "The body is neither JSON nor a form."},
    422: {"model": ErrorAnswer, "description": "A field is invalid; the message names it."},
    429: {"model": ErrorAnswer, "description": "The server is busy; try again after Retry-After seconds."},
    500: {"model": ErrorAnswer, "description": "The model failed on a sentence."},
    503: {"model": ErrorAnswer, "description": "The translation took too long, or the server is shutting down."},
}
STREAM = {
    "description": 'The translations. With stream: one JSON object per line; the last is {"done": true} or an error.',
    "content": {STREAM_TYPE: {"schema": {"type": "string"}}},
}


def create_app(models: Models, limits: Limits, metrics: Metrics, allow_origins: tuple[str, ...] = ()) -> FastAPI:
    """The application; `app.state.service` is its state. The end of its lifespan closes the models."""
    service = Service(models, limits, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(libretranslate.load_detection(models))
        yield
        await warming
        service.gate.closed = True
        await asyncio.to_thread(models.close)

    app = FastAPI(
        title="deepnmt",
        version=__version__,
        description="Translation with very deep Transformers.",
        docs_url=None,  # FastAPI's own pages load scripts from the internet
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    _add_translate(app, service)
    _add_libretranslate(app, service)
    _add_facts(app, service)
    _add_page(app)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _not_served)
    if allow_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=allow_origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(CountedRequests, metrics=metrics)
    return app


def _add_translate(app: FastAPI, service: Service) -> None:
    own, libre = TranslateRequest.model_json_schema(), LibreTranslateRequest.model_json_schema()
    content: dict[str, Any] = {"application/json": {"schema": {"oneOf": [own, libre]}}}
    content |= {kind: {"schema": libre} for kind in (FORM, MULTIPART)}

    @app.post(
        "/translate",
        summary="Translate one text or several",
        responses={200: {"model": TranslateAnswer | LibreTranslateAnswer, **STREAM}, **REFUSALS},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def translate(request: Request) -> Response:
        fields = await read_fields(request, service.limits, service.gate)
        if "q" in fields and "text" not in fields:
            return await libretranslate.translate(service, fields, request.receive)
        asked = checked(TranslateRequest, fields, 422, service.limits)
        texts = checked_texts(asked.text, service.limits)
        model = service.models.pick(asked.model, asked.source, asked.target)
        options = _options(model, asked, service.limits)
        leave = service.admit(texts, options)
        try:
            split = await off_loop(sum(map(len, texts)), lambda: [split_sentences(text) for text in texts])
            if asked.stream:
                return LineStream(_lines(service, model, split, options), leave)
            sentences = [(sentence.text, options) for sentences in split for sentence in sentences]
            answers = await unless_gone(request.receive, service.translate_all(model, sentences))
            return JsonAnswer(await off_loop(sum(map(size_of, answers)), _answer, model, split, answers), leave)
        except BaseException:
            leave()
            raise


def _options(model: ServedModel, asked: TranslateRequest, limits: Limits) -> Options:
    options = model.options(
        beam=asked.beam, length_penalty=asked.length_penalty, nbest=asked.nbest, alignments=asked.alignments
    )
    for name, value in (("beam", asked.beam), ("nbest", asked.nbest)):
        if value is not None and value > limits.max_beam:
            raise RefusedError(422, f"{name} must be at most {limits.max_beam}, not {value}")
    if options.nbest > options.beam:
        raise RefusedError(422, f"nbest = {options.nbest} must be at most beam = {options.beam}")
    return options


def _answer(model: ServedModel, split: list[list[Sentence]], answers: list[Hypotheses]) -> bytes:
    remaining = iter(answers)
    translations = []
    for sentences in split:
        own = [next(remaining) for _ in sentences]
        gaps = fitted_gaps(sentences, model.target)
        text = "".join(hypotheses[0].text + gap for hypotheses, gap in zip(own, gaps, strict=True))
        tables = [
            sentence_json(sentence.text, gap, hypotheses)
            for sentence, gap, hypotheses in zip(sentences, gaps, own, strict=True)
            if sentence.text
        ]
        translations.append(f'{{"text":{json.dumps(text, ensure_ascii=False)},"sentences":[{",".join(tables)}]}}')
    return f'{_head(model)[:-1]},"translations":[{",".join(translations)}]}}'.encode()


async def _lines(
    service: Service, model: ServedModel, split: list[list[Sentence]], options: Options
) -> AsyncGenerator[str, None]:
    """The number of sentences, each sentence with the number of its text, and that all is done, or an error."""
    yield f'{_head(model)[:-1]},"sentences":{sum(map(len, split))}}}'
    places = [
        (number, sentence, gap)
        for number, sentences in enumerate(split)
        for sentence, gap in zip(sentences, fitted_gaps(sentences, model.target), strict=True)
    ]
    requests = ((sentence.text, options) for _, sentence, _ in places)
    remaining = iter(places)
    try:
        async with aclosing(service.translate(model, requests)) as stream:
            async for hypotheses in stream:
                number, sentence, gap = next(remaining)
                table = await off_loop(size_of(hypotheses), sentence_json, sentence.text, gap, hypotheses)
                yield f'{{"number":{number},{table[1:]}'
        yield '{"done":true}'
    except RefusedError as refused:  # too late for a status
        yield json.dumps({"error": refused.message})


def _head(model: ServedModel) -> str:
    return json.dumps({"model": model.name, "source": model.source, "target": model.target}, separators=(",", ":"))


def _add_libretranslate(app: FastAPI, service: Service) -> None:
    @app.get("/languages", summary="The languages, as LibreTranslate lists them", response_model=list[LanguageAnswer])
    async def languages() -> Response:
        return JSONResponse(libretranslate.languages(service.models))

    content = {kind: {"schema": DetectRequest.model_json_schema()} for kind in ("application/json", FORM, MULTIPART)}

    @app.post(
        "/detect",
        summary="Which of the served source languages a text is in",
        response_model=list[DetectionAnswer],
        responses={status: REFUSALS[status] for status in (400, 408, 413, 415, 422, 429)},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def detect(request: Request) -> Response:
        fields = await read_fields(request, service.limits, service.gate)
        asked = checked(DetectRequest, fields, 400, service.limits)
        return JSONResponse(await libretranslate.detect(service.models, checked_texts(asked.q, service.limits)))

    @app.get("/frontend/settings", summary="Settings that LibreTranslate's clients read")
    async def settings() -> dict[str, Any]:
        return libretranslate.settings(service.models, service.limits)


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/models", summary="The models", response_model=list[ModelAnswer])
    async def models() -> Response:
        return JSONResponse([model.about() for model in service.models])

    @app.get(
        "/models/{name}/connections",
        summary="The learned weights between the layers of a model",
        response_model=ConnectionsAnswer,
        responses={404: {"model": ErrorAnswer, "description": "No such model."}},
    )
    async def connections(name: str) -> Response:
        for model in service.models:
            if model.name == name:
                return JSONResponse(model.connections())
        raise RefusedError(404, "there is no model of this name; /models lists all")

    @app.get("/limits", summary="Limits of one request")
    async def limits() -> dict[str, int]:
        names = ("max_body_bytes", "max_characters", "max_texts", "max_beam", "max_answer_bytes")
        return {name: getattr(service.limits, name) for name in names}

    @app.get(
        "/health",
        summary="Is the server ready?",
        response_model=HealthAnswer,
        responses={503: {"model": HealthAnswer, "description": "A model fails, or the server is shutting down."}},
    )
    async def health() -> Response:
        failures = [(model.name, failure) for model in service.models if (failure := model.queue.failure)]
        failing = [
            {
                "model": name,
                "since": failure.since.isoformat(timespec="seconds"),
                "batches": failure.batches,
                "error": failure.error,
            }
            for name, failure in failures
        ]
        status = "shutting down" if service.gate.closed else "failing" if failing else "ok"
        names = [model.name for model in service.models]
        table = {"status": status, "models": names, "failing": failing}
        return JSONResponse(table, 200 if status == "ok" else 503)

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    def page(name: str) -> FileResponse:
        return FileResponse(PAGE / name, headers=SAFETY)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return page("docs.html")

    app.mount("/page", StaticFiles(directory=PAGE))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return JSONResponse({"error": error.message}, error.status, headers=headers)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {404: "there is nothing at this address; see /docs", 405: "this address does not accept this method"}
    message = known.get(error.status_code, str(error.detail))
    return JSONResponse({"error": message}, error.status_code, headers=error.headers)
