"""The HTTP application: its routes, and every error as JSON."""

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from deepnmt import __version__
from deepnmt.serving import libretranslate, native
from deepnmt.serving.bodies import FORM, MULTIPART, read_fields
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.models import Models
from deepnmt.serving.prometheus import Metrics
from deepnmt.serving.responses import CountedRequests, LineStream
from deepnmt.serving.service import Service
from deepnmt.serving.shapes import (
    DetectionAnswer,
    DetectRequest,
    ErrorAnswer,
    HealthAnswer,
    LanguageAnswer,
    LibreTranslateAnswer,
    LibreTranslateRequest,
    ModelAnswer,
    StackAnswer,
    Status,
    TranslateAnswer,
    TranslateRequest,
    checked,
    checked_texts,
)

PAGE = Path(__file__).parent / "page"
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
    "content": {LineStream.media_type: {"schema": {"type": "string"}}},
}


def create_app(models: Models, limits: Limits, metrics: Metrics, allow_origins: tuple[str, ...] = ()) -> FastAPI:
    """The application; `app.state.service` is its state."""
    service = Service(models, limits, metrics)
    app = FastAPI(
        title="deepnmt",
        version=__version__,
        description="Translation with very deep Transformers.",
        docs_url=None,  # FastAPI's own pages load scripts from the internet
        redoc_url=None,
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
            CORSMiddleware,
            allow_origins=allow_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["retry-after"],
        )
    app.add_middleware(CountedRequests, service=service)
    return app


def _add_translate(app: FastAPI, service: Service) -> None:
    own, libre = TranslateRequest.model_json_schema(), LibreTranslateRequest.model_json_schema()
    own["properties"]["nbest"]["maximum"] = service.limits.max_beam
    libre["properties"]["alternatives"]["maximum"] = service.limits.max_beam - 1
    content: dict[str, Any] = {"application/json": {"schema": {"oneOf": [own, libre]}}}
    content |= {kind: {"schema": libre} for kind in (FORM, MULTIPART)}

    @app.post(
        "/translate",
        summary="Translate one text or several",
        responses={200: {"model": TranslateAnswer | LibreTranslateAnswer, **STREAM}, **REFUSALS},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def translate(request: Request) -> Response:
        asked = await _asked(request, service)
        if isinstance(asked, LibreTranslateRequest):
            return await libretranslate.translate(service, asked, request)
        return await native.translate(service, asked, request)


async def _asked(request: Request, service: Service) -> TranslateRequest | LibreTranslateRequest:
    """Other fields, which may be large, must not be kept while the request waits."""
    fields = await read_fields(request, service)
    if "q" in fields and "text" not in fields:
        return checked(LibreTranslateRequest, fields, 400, service.limits)
    return checked(TranslateRequest, fields, 422, service.limits)


def _add_libretranslate(app: FastAPI, service: Service) -> None:
    @app.get("/languages", summary="The languages, as LibreTranslate lists them")
    async def languages() -> list[LanguageAnswer]:
        return libretranslate.languages(service.models)

    content = {kind: {"schema": DetectRequest.model_json_schema()} for kind in ("application/json", FORM, MULTIPART)}

    @app.post(
        "/detect",
        summary="Which of the served source languages a text is in",
        responses={status: REFUSALS[status] for status in (400, 408, 413, 415, 422, 429)},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def detect(request: Request) -> list[DetectionAnswer]:
        fields = await read_fields(request, service)
        asked = checked(DetectRequest, fields, 400, service.limits)
        return [await libretranslate.detect(service.models, checked_texts(asked.q, service.limits))]

    @app.get("/frontend/settings", summary="Settings that LibreTranslate's clients read")
    async def settings() -> dict[str, Any]:
        return libretranslate.settings(service.models, service.limits)


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/models", summary="The models", response_model_exclude_none=True)
    async def models() -> list[ModelAnswer]:
        answers = []
        for model in service.models:
            sources, targets = model.choices if model.is_multilingual else (None, None)
            pair = {"source": model.source, "target": model.target}
            answers.append(ModelAnswer(name=model.name, **pair, sources=sources, targets=targets))
        return answers

    @app.get(
        "/models/{name:path}/connections",
        summary="The learned weights between the layers of a model: of its encoder and its decoder",
        responses={404: {"model": ErrorAnswer, "description": "No such model."}},
    )
    async def connections(name: str) -> dict[str, StackAnswer]:
        for model in service.models:
            if model.name == name:
                return {side: StackAnswer.of(model.translator.models[0], side) for side in ("encoder", "decoder")}
        raise RefusedError(404, "there is no model of this name; /models lists all")

    @app.get("/limits", summary="Limits of one request")
    async def limits() -> dict[str, int]:
        names = ("max_body_bytes", "max_characters", "max_texts", "max_beam", "max_terms", "max_answer_bytes")
        return {name: getattr(service.limits, name) for name in names}

    @app.get(
        "/health",
        summary="Is the server ready?",
        responses={503: {"model": HealthAnswer, "description": "A model fails, or the server is shutting down."}},
    )
    async def health(response: Response) -> HealthAnswer:
        failing = [failure for model in service.models if (failure := model.queue.failure)]
        status: Status = "shutting down" if service.closed else "failing" if failing else "ok"
        response.status_code = 200 if status == "ok" else 503
        return HealthAnswer(status=status, models=[model.name for model in service.models], failing=failing)

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return PlainTextResponse(service.metrics.text(service.gauges()), media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(PAGE / "docs.html")

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
