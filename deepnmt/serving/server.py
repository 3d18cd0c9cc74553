"""The HTTP application: its routes, and every error as JSON."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
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
from deepnmt.serving.connection import LineStream, Observed, unless_gone
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.metrics import Metrics
from deepnmt.serving.models import ServedModel, Shelf
from deepnmt.serving.sentences import split_sentences
from deepnmt.serving.service import Service, sentence_table, whole_text
from deepnmt.serving.shapes import (
    ConnectionsAnswer,
    ErrorAnswer,
    HealthAnswer,
    LanguageAnswer,
    LibreTranslateAnswer,
    LibreTranslateRequest,
    ModelAnswer,
    TranslateAnswer,
    TranslateRequest,
    checked,
    checked_options,
    checked_texts,
)

PAGE = Path(__file__).parent / "page"
# The page, its scripts and its styles come from here and from nowhere else.
SAFETY = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The body cannot be read, or a request of LibreTranslate's is wrong."},
    413: {"model": ErrorAnswer, "description": "Too much for one request."},
    422: {"model": ErrorAnswer, "description": "A field is wrong; the message names it."},
    429: {"model": ErrorAnswer, "description": "Too much is waiting already; try again after Retry-After seconds."},
    503: {"model": ErrorAnswer, "description": "It took too long, or the server is shutting down."},
}


def create_app(shelf: Shelf, limits: Limits, metrics: Metrics, allow_origins: tuple[str, ...] = ()) -> FastAPI:
    """The application; `app.state.service` is what it works with. The end of its lifespan closes the shelf."""
    service = Service(shelf, limits, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.gate.closed = True
        await asyncio.to_thread(shelf.close)

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
    _add_facts(app, service)
    _add_page(app)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _not_served)
    if allow_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=allow_origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(Observed, metrics=metrics)
    return app


def _add_translate(app: FastAPI, service: Service) -> None:
    own, libre = TranslateRequest.model_json_schema(), LibreTranslateRequest.model_json_schema()
    content: dict[str, Any] = {"application/json": {"schema": {"oneOf": [own, libre]}}}
    content |= {kind: {"schema": libre} for kind in (FORM, MULTIPART)}

    @app.post(
        "/translate",
        summary="Translate one text or several",
        responses={200: {"model": TranslateAnswer | LibreTranslateAnswer}, **REFUSALS},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def translate(request: Request) -> Response:
        fields = await read_fields(request, service.limits)
        if "q" in fields and "text" not in fields:
            return JSONResponse(await libretranslate.answer(service, fields, request.receive))
        asked = checked(TranslateRequest, fields, 422)
        texts, options = checked_texts(asked.text, service.limits), checked_options(asked, service.limits)
        model = service.shelf.pick(asked.model, asked.source, asked.target)
        if asked.stream:
            size = sum(map(len, texts))
            service.gate.enter(size)
            leave = partial(service.gate.leave, size)
            return LineStream(_lines(service, model, texts, options), leave, patience=service.limits.timeout)
        with service.admitted(texts):
            answers = await unless_gone(request.receive, service.translate_all(model, texts, options))
        translations = [
            {"text": whole_text(sentences), "sentences": [sentence_table(t) for t in sentences if t.sentence.text]}
            for sentences in answers
        ]
        return JSONResponse({"model": model.name, **_languages(model), "translations": translations})


async def _lines(
    service: Service, model: ServedModel, texts: list[str], options: Options
) -> AsyncGenerator[dict[str, Any], None]:
    """What a stream says: how much there will be, each sentence with the number of its text, and that it is done."""
    count = sum(len(split_sentences(text)) for text in texts)
    yield {"model": model.name, **_languages(model), "sentences": count}
    async with aclosing(service.translate(model, texts, options)) as stream:
        async for translated in stream:
            yield {"number": translated.text, **sentence_table(translated)}
    yield {"done": True}


def _languages(model: ServedModel) -> dict[str, str]:
    return {"source": model.source, "target": model.target}


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/languages", summary="The languages, as LibreTranslate lists them", response_model=list[LanguageAnswer])
    async def languages() -> Response:
        return JSONResponse(libretranslate.languages(service.shelf))

    @app.get("/models", summary="The models", response_model=list[ModelAnswer])
    async def models() -> Response:
        return JSONResponse([model.about() for model in service.shelf.models])

    @app.get(
        "/models/{name}/connections",
        summary="What the layers of a model listen to",
        response_model=ConnectionsAnswer,
        responses={404: {"model": ErrorAnswer, "description": "No such model."}},
    )
    async def connections(name: str) -> Response:
        for model in service.shelf.models:
            if model.name == name:
                return JSONResponse(model.connections())
        raise RefusedError(404, "there is no model of this name; /models lists those there are")

    @app.get("/limits", summary="What one request may ask for")
    async def limits() -> dict[str, int]:
        names = ("max_body_bytes", "max_characters", "max_texts", "max_beam")
        return {name: getattr(service.limits, name) for name in names}

    @app.get(
        "/health",
        summary="Is the server ready?",
        response_model=HealthAnswer,
        responses={503: {"model": HealthAnswer, "description": "It is shutting down."}},
    )
    async def health() -> Response:
        names = [model.name for model in service.shelf.models]
        closed = service.gate.closed
        return JSONResponse({"status": "shutting down" if closed else "ok", "models": names}, 503 if closed else 200)

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
    told = {404: "there is nothing at this address; see /docs", 405: "this address does not take this method"}
    message = told.get(error.status_code, str(error.detail))
    return JSONResponse({"error": message}, error.status_code, headers=error.headers)
