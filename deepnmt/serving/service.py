"""From sentences to translations: into the queue a window at a time, out in order, within limits of time and bytes."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from deepnmt.serving.batching import Options
from deepnmt.serving.hypotheses import Hypotheses, ServedHypothesis, size_of
from deepnmt.serving.limits import Gate, Limits, RefusedError
from deepnmt.serving.metrics import Gauge, Metrics
from deepnmt.serving.models import Models, ServedModel, shortened
from deepnmt.serving.sentences import MAX_SENTENCE

# Of one request in the queue at once: a document does not push a short request far back.
WINDOW = 64  # sentences
WINDOW_COST = WINDOW * MAX_SENTENCE
LARGE = 20_000  # characters or bytes; work on more than this is done in a thread
Request = tuple[str, Options]  # a sentence to translate
Result = TypeVar("Result")


class Service:
    """The state that all routes share."""

    def __init__(self, models: Models, limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = models, limits, metrics
        self.gate = Gate(limits)
        metrics.gauges = [
            Gauge(
                "deepnmt_queue_sentences",
                "Sentences waiting for a batch.",
                lambda: {(("model", model.name),): model.queue.depth for model in models},
            ),
            Gauge(
                "deepnmt_model_failing",
                "1 while a model fails on every batch.",
                lambda: {(("model", model.name),): float(model.queue.failure is not None) for model in models},
            ),
            Gauge(
                "deepnmt_cache_bytes",
                "Size of the cached translations.",
                lambda: {(("model", model.name),): model.cache.size for model in models},
            ),
            Gauge("deepnmt_requests_at_work", "Requests being translated.", lambda: {(): self.gate.requests}),
            Gauge("deepnmt_characters_at_work", "Their characters.", lambda: {(): self.gate.characters}),
        ]

    def admit(self, texts: Sequence[str], options: Options) -> Callable[[], None]:
        """Count these texts as work at hand, or refuse them; call what is returned when they are done."""
        cost = sum(options.cost(len(text)) for text in texts)
        self.gate.enter(cost)
        return partial(self.gate.leave, cost)

    async def translate(self, model: ServedModel, sentences: Iterable[Request]) -> AsyncGenerator[Hypotheses, None]:
        """In order. Nothing stays in the queue when the caller stops asking."""
        window: deque[tuple[str, int, asyncio.Future[Hypotheses]]] = deque()
        cost = 0
        try:
            for text, options in sentences:
                own = options.cost(len(text))
                while window and (len(window) >= WINDOW or cost + own > WINDOW_COST):
                    cost -= window[0][1]
                    yield await self._first(window)
                window.append((text, own, self._ask(model, text, options)))
                cost += own
            while window:
                yield await self._first(window)
        finally:
            for _, _, answer in window:
                answer.cancel()

    def _ask(self, model: ServedModel, text: str, options: Options) -> "asyncio.Future[Hypotheses]":
        if any(map(str.isalnum, text)):
            return model.translate(text, options)
        answer: asyncio.Future[Hypotheses] = asyncio.get_running_loop().create_future()
        answer.set_result([ServedHypothesis(text, 0.0)])  # a rule, a bullet, a row of dots: nothing to translate
        return answer

    async def _first(self, window: "deque[tuple[str, int, asyncio.Future[Hypotheses]]]") -> Hypotheses:
        text, _, answer = window[0]
        try:
            async with asyncio.timeout(self.limits.timeout):
                found = await answer
        except TimeoutError:
            raise self._too_slow() from None
        except Exception as error:
            raise RefusedError(500, f"the model failed on the sentence {shortened(text)!r}") from error
        window.popleft()
        return found

    async def translate_all(self, model: ServedModel, sentences: Iterable[Request]) -> list[Hypotheses]:
        """Within the time of one answer and the size of one answer."""
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


async def off_loop(size: int, function: Callable[..., Result], *arguments: object) -> Result:
    """The function's result; in a thread if its input is large, so that other clients are served meanwhile."""
    return await asyncio.to_thread(function, *arguments) if size > LARGE else function(*arguments)
