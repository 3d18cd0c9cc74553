"""From a request's texts to answers: sentences into the queue a window at a time, translations out in order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from deepnmt.decoding.translator import Hypothesis
from deepnmt.serving.batching import Found, Options
from deepnmt.serving.limits import Gate, Limits, RefusedError
from deepnmt.serving.metrics import Gauge, Metrics
from deepnmt.serving.models import ServedModel, Shelf
from deepnmt.serving.sentences import Sentence, fitted_gap, split_sentences

# Sentences of one request in the queue at once: a document does not push a short request far back.
WINDOW = 64


@dataclass(frozen=True)
class Translated:
    """A sentence of text number `text`, and its translations."""

    text: int
    sentence: Sentence
    gap: str  # as the target language writes it
    found: Found


class Service:
    """All that the routes share."""

    def __init__(self, shelf: Shelf, limits: Limits, metrics: Metrics) -> None:
        self.shelf, self.limits, self.metrics = shelf, limits, metrics
        self.gate = Gate(limits)
        metrics.gauges = [
            Gauge(
                "deepnmt_queue_sentences",
                "Sentences that wait for a batch.",
                lambda: {(("model", model.name),): model.queue.depth for model in shelf.models},
            ),
            Gauge("deepnmt_requests_at_work", "Requests being translated.", lambda: {(): self.gate.requests}),
            Gauge("deepnmt_characters_at_work", "Their characters.", lambda: {(): self.gate.characters}),
        ]

    @contextmanager
    def admitted(self, texts: Sequence[str]) -> Iterator[None]:
        size = sum(map(len, texts))
        self.gate.enter(size)
        try:
            yield
        finally:
            self.gate.leave(size)

    async def translate(
        self, model: ServedModel, texts: Sequence[str], options: Options
    ) -> AsyncGenerator[Translated, None]:
        """Sentence by sentence, in order. Nothing of it stays in the queue when the caller stops asking."""
        split = [split_sentences(text) for text in texts]
        places = ((i, k) for i, sentences in enumerate(split) for k in range(len(sentences)))
        asked: deque[tuple[int, int, asyncio.Future[Found]]] = deque()
        try:
            for i, k in places:
                asked.append((i, k, self._ask(model, split[i][k].text, options)))
                if len(asked) >= WINDOW:
                    yield await self._first(asked, split, model)
            while asked:
                yield await self._first(asked, split, model)
        finally:
            for _, _, answer in asked:
                answer.cancel()

    def _ask(self, model: ServedModel, text: str, options: Options) -> "asyncio.Future[Found]":
        if any(map(str.isalnum, text)):
            return model.translate(text, options)
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        answer.set_result([Hypothesis(text, 0.0, 0.0, [])])  # a rule, a bullet, a row of dots: no language
        return answer

    async def _first(
        self, asked: deque[tuple[int, int, "asyncio.Future[Found]"]], split: list[list[Sentence]], model: ServedModel
    ) -> Translated:
        i, k, answer = asked[0]
        try:
            async with asyncio.timeout(self.limits.timeout):
                found = await answer
        except TimeoutError:
            raise self.too_slow() from None
        except Exception as error:
            raise RefusedError(500, f"the model failed on sentence {k + 1} of text {i + 1}") from error
        asked.popleft()
        sentence, is_last = split[i][k], k == len(split[i]) - 1
        return Translated(i, sentence, sentence.gap if is_last else fitted_gap(sentence, model.target), found)

    async def translate_all(self, model: ServedModel, texts: Sequence[str], options: Options) -> list[list[Translated]]:
        """For each text its sentences; the time limit is for all of them together."""
        answers: list[list[Translated]] = [[] for _ in texts]
        try:
            async with asyncio.timeout(self.limits.timeout), aclosing(self.translate(model, texts, options)) as stream:
                async for translated in stream:
                    answers[translated.text].append(translated)
        except TimeoutError:
            raise self.too_slow() from None
        return answers

    def too_slow(self) -> RefusedError:
        message = f"the translation took longer than {self.limits.timeout:g} seconds; send less at once, or stream"
        return RefusedError(503, message, retry_after=5)


def whole_text(sentences: Sequence[Translated], rank: int = 0) -> str:
    """The text from the translations of this rank; a sentence that has fewer gives its last."""
    return "".join(t.found[min(rank, len(t.found) - 1)].text + t.gap for t in sentences)


def sentence_table(translated: Translated) -> dict[str, Any]:
    best, *others = (_hypothesis_table(hypothesis) for hypothesis in translated.found)
    table = {"source": translated.sentence.text, **best, "gap": translated.gap}
    return {**table, "alternatives": others} if others else table


def _hypothesis_table(hypothesis: Hypothesis) -> dict[str, Any]:
    table: dict[str, Any] = {"text": hypothesis.text, "score": round(hypothesis.score, 4)}
    if (alignment := hypothesis.alignment) is not None:
        table["alignment"] = {
            "source_words": alignment.source_words,
            "target_words": alignment.target_words,
            "links": alignment.links,
            "weights": [[round(weight, 3) for weight in row] for row in alignment.weights],
        }
    return table
