"""A queue in front of a model, which batches the sentences of many clients."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from sys import getsizeof

from deepnmt.decoding.config import DecodingConfig
from deepnmt.decoding.documents.sentences import MAX_SENTENCE
from deepnmt.decoding.glossary import Glossary
from deepnmt.decoding.translator import Hypothesis, Translator
from deepnmt.devices import return_memory
from deepnmt.serving.limits import Limits
from deepnmt.serving.prometheus import Metrics

Hypotheses = Sequence[Hypothesis]  # of one sentence, best first
logger = logging.getLogger("deepnmt.serving")
CLOSING_SECONDS = 1.0  # that a closed queue waits for its worker
TERM_COST = 8  # of a sentence whose terms are searched for, over that of one without
IDLE_SECONDS = 5.0  # without work: then a failing model is probed, or unused memory returned to the system


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings that a client may choose. Only sentences with the same options are batched together."""

    beam: int = DecodingConfig.beam
    length_penalty: float = DecodingConfig.length_penalty
    nbest: int = 1
    alignments: bool = False
    languages: tuple[str, str] | None = None  # of a model that has several
    terms: Glossary | None = None

    def cost(self, characters: int) -> int:
        """The cost of this many characters in limits: memory grows with n-best lists and alignments, time with the
        wide beams of a request's own terms."""
        words = 1 + min(characters, MAX_SENTENCE) // 100 if self.alignments else 1
        return characters * self.nbest * words * (TERM_COST if self.terms and self.terms.base else 1)


@dataclass(frozen=True)
class Failure:
    """A model that cannot translate anything, as `/health` reports it."""

    model: str
    since: datetime  # when its first batch failed
    batches: int  # failed attempts since then
    error: str


@dataclass(eq=False)
class _Job:
    text: str
    options: Options
    answer: Future[Hypotheses] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class BatchQueue:
    """One worker thread for one model, which answers any event loop.

    A batch is the oldest sentence and those closest to it in length. An idle worker waits a moment for more sentences;
    while it is busy, the next batch accumulates.
    """

    def __init__(
        self, translator: Translator, name: str, limits: Limits, metrics: Metrics, options: Options = Options()
    ) -> None:
        """options: for probing a model that has not translated anything yet"""
        self.translator, self.name, self.limits, self.metrics = translator, name, limits, metrics
        self._waiting: list[_Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._failure: Failure | None = None
        self._busy_since: float | None = None
        self._known_good = ("Hello.", options)
        self._has_worked = False  # since memory was returned
        self._worker = threading.Thread(target=self._work, name=f"translate {name}", daemon=True)
        self._worker.start()

    @property
    def depth(self) -> int:
        return len(self._waiting)

    @property
    def failure(self) -> Failure | None:
        """Why and since when the model translates nothing; None while it works."""
        busy_since = self._busy_since
        if busy_since is not None and (waited := time.monotonic() - busy_since) > self.limits.timeout:
            since = datetime.now(UTC) - timedelta(seconds=waited)
            return Failure(self.name, since, 1, "no answer from the model")
        return self._failure

    def submit(self, text: str, options: Options) -> "asyncio.Future[Hypotheses]":
        """A future of the hypotheses of this sentence; cancel it to withdraw the sentence."""
        job = _Job(text, options)
        with self._changed:
            if self._closed:
                raise RuntimeError("the queue is closed")
            self._waiting.append(job)
            self._changed.notify()
        return asyncio.wrap_future(job.answer)

    def close(self) -> bool:
        """Finish what waits and end the worker. False: the model is still busy with work that nobody waits for."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._worker.join(CLOSING_SECONDS)
        return not self._worker.is_alive()

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            if not batch:
                if self._failure:
                    self._probe()
                else:
                    return_memory()
                    self._has_worked = False
                continue
            self._has_worked = True
            answers = self._translate(batch)
            if all(isinstance(answer, Exception) for answer in answers):
                self._probe()  # is it these sentences, or the model?
            for job, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    job.answer.set_exception(answer)
                else:
                    job.answer.set_result(answer)

    def _next_batch(self) -> list[_Job] | None:
        """The next jobs; none when the worker is idle, None when the queue is closed and empty."""
        with self._changed:
            while True:
                self._waiting = [job for job in self._waiting if not job.answer.cancelled()]
                if not self._waiting:
                    if self._closed:
                        return None
                    if not self._changed.wait(IDLE_SECONDS if self._failure or self._has_worked else None):
                        return []
                    continue
                left = self._waiting[0].since + self.limits.batch_wait - time.monotonic()
                if left <= 0 or self._closed or len(self._waiting) >= self.limits.max_batch_sentences:
                    break
                self._changed.wait(left)
            batch = self._choose()
            chosen = set(batch)
            self._waiting = [job for job in self._waiting if job not in chosen]
            return [job for job in batch if job.answer.set_running_or_notify_cancel()]

    def _choose(self) -> list[_Job]:
        oldest = self._waiting[0]
        alike = [job for job in self._waiting if job.options == oldest.options]
        if len(alike) > self.limits.max_batch_sentences:
            alike.sort(key=lambda job: (job is not oldest, abs(len(job.text) - len(oldest.text)), job.since))
        batch: list[_Job] = []
        longest = 0
        for job in alike[: self.limits.max_batch_sentences]:
            longest = max(longest, oldest.options.cost(len(job.text)))
            if batch and longest * (len(batch) + 1) > self.limits.max_batch_characters:
                break
            batch.append(job)
        return batch

    def _translate(self, batch: list[_Job]) -> list[Hypotheses | Exception]:
        """A sentence on which the model fails does not fail the others of its batch."""
        started = time.monotonic()
        options = batch[0].options
        try:
            found = self._ask([job.text for job in batch], options)
        except Exception as error:
            self._log_failure(f"model {self.name} failed on a batch of {len(batch)} sentences", error)
            if len(batch) == 1:
                return [error]
            return [answer for job in batch for answer in self._translate([job])]
        self._failure = None
        self._known_good = (batch[0].text, options)
        metrics, model = self.metrics, self.name
        metrics.observe("deepnmt_batch_sentences", len(batch), model=model)
        metrics.observe("deepnmt_batch_seconds", time.monotonic() - started, model=model)
        metrics.add("deepnmt_sentences_total", len(batch), model=model)
        metrics.add("deepnmt_source_characters_total", sum(len(job.text) for job in batch), model=model)
        metrics.add("deepnmt_target_tokens_total", sum(len(best.pieces) for best, *_ in found), model=model)
        return [[replace(hypothesis, pieces=[]) for hypothesis in hypotheses] for hypotheses in found]

    def _ask(self, texts: list[str], options: Options) -> list[list[Hypothesis]]:
        self._busy_since = time.monotonic()
        try:
            settings = {**vars(options)}
            languages = settings.pop("languages")
            translator = self.translator if languages is None else self.translator.for_languages(*languages)
            return translator.translate_nbest(texts, warn=lambda *_: None, keep_placeholders=True, **settings)
        finally:
            self._busy_since = None

    def _probe(self) -> None:
        """Translate a sentence that has been translated before: if this fails too, the model is failing."""
        text, options = self._known_good
        try:
            self._ask([text], options)
        except Exception as error:
            failure = self._failure or Failure(self.name, datetime.now(UTC), 0, "")
            self._failure = replace(failure, batches=failure.batches + 1, error=type(error).__name__)
            self._log_failure(f"model {self.name} failed again on a sentence it has translated before", error)
        else:
            self._failure = None

    def _log_failure(self, message: str, error: Exception) -> None:
        """With a traceback the first time only: a model that fails must not fill the disk."""
        if self._failure is None:
            logger.error(message, exc_info=error)
        else:
            logger.error("%s: %s", message, type(error).__name__)


def size_of(hypotheses: Hypotheses) -> int:
    """In memory; the JSON is of about the same size."""
    size = sum(150 + getsizeof(hypothesis.text) for hypothesis in hypotheses)
    for alignment in (hypothesis.alignment for hypothesis in hypotheses if hypothesis.alignment):
        words = [*alignment.source_words, *alignment.target_words]
        size += 400 + alignment.weights.nbytes + sum(8 + getsizeof(word) for word in words)
    return size
