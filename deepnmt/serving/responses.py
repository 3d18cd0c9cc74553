"""Answers to a client: work is cancelled when the client disconnects, answers are streamed, requests are counted."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepnmt.serving.limits import RefusedError
from deepnmt.serving.service import Service

logger = logging.getLogger("deepnmt.serving")
Result = TypeVar("Result")
PIECE_BYTES = 65_536
GONE = 499  # the client disconnected before the answer: a status for the metrics only
# The page, its scripts and its styles come from this server and from nowhere else, and are those of its version.
SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
     b"frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)  # fmt: skip


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client disconnects. The body must have been read."""
    task, disconnection = asyncio.ensure_future(work), asyncio.ensure_future(_disconnection(receive))
    try:
        await asyncio.wait({task, disconnection}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedError(GONE, "the client disconnected")
        return task.result()
    finally:
        for unfinished in (task, disconnection):
            unfinished.cancel()
        await asyncio.gather(task, disconnection, return_exceptions=True)


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class JsonAnswer(Response):
    """Sent in pieces, each when the client has read those before: until then its memory counts as in progress."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), PIECE_BYTES):
            piece = bytes(self.body[start : start + PIECE_BYTES])
            more = start + PIECE_BYTES < len(self.body)
            await send({"type": "http.response.body", "body": piece, "more_body": more})


class LineStream(StreamingResponse):
    """NDJSON: one JSON object per line, each sent at once. The generator is closed however the stream ends."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines, headers={"x-accel-buffering": "no"})  # a proxy must not collect the lines
        self.lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.lines):
            with suppress(RefusedError):  # the client has gone
                await unless_gone(receive, self.stream_response(send))


class CountedRequests:
    """Counts every request with its route and status, and times it until the last byte of the answer.

    Until then the request counts as in progress. HEAD is answered like GET; uvicorn leaves out the body.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        started, status = time.monotonic(), GONE

        async def observing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *SECURITY_HEADERS]}
            await send(message)

        try:
            await self.app(scope, receive, observing)
        except asyncio.CancelledError:  # the server shuts down and waits no longer
            if status == GONE:
                status = 503
                await JSONResponse({"error": "the server is shutting down"}, 503)(scope, receive, send)
        except Exception:  # a bug: the client gets a sentence, the log the traceback
            logger.exception("%s %.200s failed", scope["method"], scope["path"])
            if status == GONE:
                status = 500
                await JSONResponse({"error": "internal error; see the server's log"}, 500)(scope, receive, send)
        finally:
            self.service.release(scope)
            route = getattr(scope.get("route"), "path", "other")  # never a path that a client made up
            metrics = self.service.metrics
            metrics.add("deepnmt_requests_total", route=route, status=str(status))
            metrics.observe("deepnmt_request_seconds", time.monotonic() - started, route=route)
            if status >= 400:
                metrics.add("deepnmt_errors_total", route=route, status=str(status))
