"""Translates sentences in order, a window at a time in the queue, within limits of time and bytes."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

from starlette.types import Scope

from deepnmt.decoding.documents.sentences import MAX_SENTENCE
from deepnmt.serving.batch_queue import Hypotheses, Options, size_of
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.models import Models, ServedModel
from deepnmt.serving.prometheus import Gauges, Metrics
from deepnmt.text import shortened

# Limits of one request in the queue at once, so that a long document does not delay short requests.
WINDOW = 64  # sentences
WINDOW_COST = WINDOW * MAX_SENTENCE
LARGE = 20_000  # characters or bytes; work on more than this is done in a thread
Request = tuple[str, Options]  # a sentence to translate
Result = TypeVar("Result")


class Service:
    """The state that all routes share: the models, and the work in progress. Once closed, it admits no more."""

    def __init__(self, models: Models, limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = models, limits, metrics
        self.requests = self.characters = self.received_bytes = 0
        self.closed = False

    def gauges(self) -> Gauges:
        yield "deepnmt_requests_at_work", self.requests, {}
        yield "deepnmt_characters_at_work", self.characters, {}
        for model in self.models:
            yield "deepnmt_queue_sentences", model.queue.depth, {"model": model.name}
            yield "deepnmt_model_failing", float(model.queue.failure is not None), {"model": model.name}
            yield "deepnmt_cache_bytes", model.cache.size, {"model": model.name}

    def admit(self, scope: Scope, texts: Sequence[str], options: Options) -> None:
        """Count these texts as in progress until the request is answered (`release`), or refuse them."""
        cost = sum(options.cost(len(text)) for text in texts)
        if self.closed:
            raise RefusedError(503, "the server is shutting down and accepts no new requests", retry_after=5)
        if self.requests >= self.limits.max_requests:
            raise _busy(f"{self.requests} requests are being served already")
        # A request that fits alone is never refused by an idle server.
        if self.requests and self.characters + cost > self.limits.max_waiting_characters:
            raise _busy(f"{self.characters:,} characters are waiting already")
        self.requests += 1
        self.characters += cost
        scope["deepnmt.cost"] = cost

    def release(self, scope: Scope) -> None:
        if (cost := scope.pop("deepnmt.cost", None)) is not None:
            self.requests -= 1
            self.characters -= cost

    def receive(self, size: int) -> None:
        """Count bytes of a request body as it arrives."""
        if self.received_bytes + size > self.limits.max_received_bytes:
            raise _busy(f"{self.received_bytes:,} bytes of other requests are arriving")
        self.received_bytes += size

    async def translate(self, model: ServedModel, sentences: Iterable[Request]) -> AsyncGenerator[Hypotheses, None]:
        """The hypotheses in order. When the caller stops iterating, nothing is left in the queue."""
        window: deque[tuple[str, int, asyncio.Task[Hypotheses]]] = deque()
        cost = 0
        try:
            for text, options in sentences:
                own = options.cost(len(text))
                while window and (len(window) >= WINDOW or cost + own > WINDOW_COST):
                    cost -= window[0][1]
                    yield await self._first(window)
                window.append((text, own, asyncio.create_task(model.translate(text, options))))
                cost += own
            while window:
                yield await self._first(window)
        finally:
            for _, _, answer in window:
                answer.cancel()
            await asyncio.gather(*(answer for _, _, answer in window), return_exceptions=True)

    async def _first(self, window: "deque[tuple[str, int, asyncio.Task[Hypotheses]]]") -> Hypotheses:
        text, _, answer = window.popleft()
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await answer
        except TimeoutError:
            raise self._too_slow() from None
        except Exception as error:
            raise RefusedError(500, f"the model failed on the sentence {shortened(text)!r}") from error

    async def translate_all(self, model: ServedModel, sentences: Iterable[Request]) -> list[Hypotheses]:
        """All hypotheses, within the time and the size of one answer."""
        answers: list[Hypotheses] = []
        size, limit = 0, self.limits.max_answer_bytes
        try:
            async with asyncio.timeout(self.limits.timeout), aclosing(self.translate(model, sentences)) as stream:
                async for hypotheses in stream:
                    size += size_of(hypotheses)
                    if size > limit:
                        message = f"the answer is longer than {limit:,} bytes; "
                        raise RefusedError(413, message + "send less at once, ask for fewer alternatives, or stream")
                    answers.append(hypotheses)
        except TimeoutError:
            raise self._too_slow() from None
        return answers

    def _too_slow(self) -> RefusedError:
        message = f"the translation took longer than {self.limits.timeout:g} seconds; send less at once, or stream"
        return RefusedError(503, message, retry_after=5)


def _busy(what: str) -> RefusedError:
    return RefusedError(429, f"{what}; try again shortly", retry_after=1)


async def off_loop(size: int, function: Callable[..., Result], *arguments: object) -> Result:
    """The function's result, computed in a thread if the input is large, so that the event loop stays responsive."""
    return await asyncio.to_thread(function, *arguments) if size > LARGE else function(*arguments)
