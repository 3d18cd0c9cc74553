"""The connection to one client: work that stops when the client leaves, answers line by line, requests counted."""

import asyncio
import json
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
GONE = 499  # the client left before the answer: nobody reads this status but the metrics


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` gives; it is cancelled when the client disconnects. The body must have been read."""
    task, departure = asyncio.ensure_future(work), asyncio.ensure_future(_departure(receive))
    try:
        await asyncio.wait({task, departure}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedError(GONE, "the client left")
        return task.result()
    finally:
        for unfinished in (task, departure):
            unfinished.cancel()
        await asyncio.gather(task, departure, return_exceptions=True)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class LineStream(Response):
    """NDJSON: a JSON object a line, as they come. `leave` is called at the end, however it ends.

    A client that takes no line within `patience` seconds is given up.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self, tables: AsyncGenerator[dict[str, Any], None], leave: Callable[[], None], patience: float
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"  # a proxy must not collect the lines
        self.tables, self.leave, self.patience = tables, leave, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._write(send))
        except RefusedError as refused:
            if refused.status != GONE:
                raise
        except TimeoutError:
            logger.info("a client did not read its stream for %g seconds and was given up", self.patience)
        finally:
            self.leave()

    async def _write(self, send: Send) -> None:
        async def patiently(message: Message) -> None:
            async with asyncio.timeout(self.patience):
                await send(message)

        await patiently({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self.tables) as tables:
            try:
                async for table in tables:
                    await patiently(_chunk(table))
            except RefusedError as refused:  # too late for a status
                await patiently(_chunk({"error": refused.message}))
        await patiently({"type": "http.response.body", "body": b"", "more_body": False})


def _chunk(table: dict[str, Any]) -> Message:
    body = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    return {"type": "http.response.body", "body": body, "more_body": True}


class Observed:
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
        except Exception:  # a bug: the client gets a sentence, the log the trace
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if status == GONE:
                status = 500
                await JSONResponse({"error": "an error of the server; its log says more"}, 500)(scope, receive, send)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never a path that a client made up
            self.metrics.requests.add(route=route, status=str(status))
            self.metrics.latency.observe(time.monotonic() - started, route=route)
            if status >= 400:
                self.metrics.errors.add(route=route, status=str(status))
