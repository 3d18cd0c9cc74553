"""Answers to one client: work that stops when the client disconnects, answers line by line, requests counted."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepnmt.serving.limits import RefusedError
from deepnmt.serving.metrics import Metrics

logger = logging.getLogger("deepnmt.serving")
Result = TypeVar("Result")
GONE = 499  # the client disconnected before the answer: a status for the metrics only
STREAM_TYPE = "application/x-ndjson"


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
    """A JSON text that counts as work at hand until the client has received it; `leave` is called then."""

    media_type = "application/json"

    def __init__(self, content: bytes, leave: Callable[[], None]) -> None:
        super().__init__(content)
        self.leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.leave()


class LineStream(Response):
    """NDJSON: a JSON object per line, sent as soon as it is there. `leave` is called at the end, however it ends."""

    media_type = STREAM_TYPE

    def __init__(self, lines: AsyncGenerator[str, None], leave: Callable[[], None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"  # a proxy must not collect the lines
        self.lines, self.leave = lines, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._write(send))
        except RefusedError as refused:
            if refused.status != GONE:
                raise
        finally:
            self.leave()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self.lines) as lines:
            async for line in lines:
                await send({"type": "http.response.body", "body": line.encode() + b"\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class CountedRequests:
    """Counts every request with its route and status, and times it until the last byte of the answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), GONE

        async def observing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, observing)
        except Exception:  # a bug: the client gets a sentence, the log the traceback
            logger.exception("%s %.200s failed", scope["method"], scope["path"])
            if status == GONE:
                status = 500
                await JSONResponse({"error": "internal error; see the server's log"}, 500)(scope, receive, send)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never a path that a client made up
            self.metrics.requests.add(route=route, status=str(status))
            self.metrics.latency.observe(time.monotonic() - started, route=route)
            if status >= 400:
                self.metrics.errors.add(route=route, status=str(status))
