"""A queue in front of a model: what many clients ask for at the same time is translated together."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from deepnmt.decoding.translator import Hypothesis
from deepnmt.serving.limits import Limits
from deepnmt.serving.metrics import Metrics

logger = logging.getLogger("deepnmt.serving")
Found = list[Hypothesis]  # of one sentence, best first


class TranslatesTexts(Protocol):
    def translate_nbest(self, texts: Sequence[str], **settings: Any) -> list[Found]: ...


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a client may choose. Only sentences with the same options are translated together."""

    beam: int = 4
    length_penalty: float = 0.6
    nbest: int = 1
    alignments: bool = False


@dataclass
class _Job:
    text: str
    options: Options
    answer: "asyncio.Future[Found]"
    since: float = field(default_factory=time.monotonic)


class BatchQueue:
    """One worker thread for one model. Answers are futures of the event loop they were asked from.

    A batch is the oldest sentence and those that are most like it in length. It waits a moment for company when the
    worker was idle; while the worker is busy the next batch gathers by itself.
    """

    def __init__(self, translator: TranslatesTexts, name: str, limits: Limits, metrics: Metrics) -> None:
        self.translator, self.name, self.limits, self.metrics = translator, name, limits, metrics
        self._waiting: list[_Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name=f"translate {name}", daemon=True)
        self._worker.start()

    @property
    def depth(self) -> int:
        return len(self._waiting)

    def submit(self, text: str, options: Options) -> "asyncio.Future[Found]":
        """The hypotheses of this sentence, some time; cancel the future to forget about it."""
        job = _Job(text, options, asyncio.get_running_loop().create_future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the queue is closed")
            self._waiting.append(job)
            self._changed.notify()
        return job.answer

    def close(self) -> None:
        """Finish what waits, then end the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._worker.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            answers = self._translate(batch)
            for loop in {job.answer.get_loop() for job in batch}:
                own = [
                    (job, answer) for job, answer in zip(batch, answers, strict=True) if job.answer.get_loop() is loop
                ]
                try:
                    loop.call_soon_threadsafe(_deliver, own)
                except RuntimeError:  # the loop is closed: nobody waits any more
                    logger.debug("%d answers came too late", len(own))

    def _next_batch(self) -> list[_Job]:
        """The next jobs; none when the queue is closed and empty."""
        with self._changed:
            while True:
                self._waiting = [job for job in self._waiting if not job.answer.cancelled()]
                if not self._waiting:
                    if self._closed:
                        return []
                    self._changed.wait()
                    continue
                left = self._waiting[0].since + self.limits.batch_wait - time.monotonic()
                if left <= 0 or self._closed or len(self._waiting) >= self.limits.max_batch_sentences:
                    break
                self._changed.wait(left)
            batch = self._choose()
            chosen = set(map(id, batch))
            self._waiting = [job for job in self._waiting if id(job) not in chosen]
            return batch

    def _choose(self) -> list[_Job]:
        oldest = self._waiting[0]
        alike = [job for job in self._waiting if job.options == oldest.options]
        if len(alike) > self.limits.max_batch_sentences:
            alike.sort(key=lambda job: (job is not oldest, abs(len(job.text) - len(oldest.text)), job.since))
        batch: list[_Job] = []
        longest = 0
        for job in alike[: self.limits.max_batch_sentences]:
            longest = max(longest, len(job.text))
            if batch and longest * (len(batch) + 1) > self.limits.max_batch_characters:
                break
            batch.append(job)
        return batch

    def _translate(self, batch: list[_Job]) -> list[Found | Exception]:
        """A sentence on which the model fails does not take the others of its batch with it."""
        started = time.monotonic()
        try:
            found = self._ask([job.text for job in batch], batch[0].options)
        except Exception as error:
            logger.exception("model %s failed on a batch of %d sentences", self.name, len(batch))
            if len(batch) == 1:
                return [error]
            return [answer for job in batch for answer in self._translate([job])]
        self.metrics.batch_size.observe(len(batch), model=self.name)
        self.metrics.batch_time.observe(time.monotonic() - started, model=self.name)
        self.metrics.sentences.add(len(batch), model=self.name)
        self.metrics.characters.add(sum(len(job.text) for job in batch), model=self.name)
        self.metrics.tokens.add(sum(len(hypotheses[0].pieces) for hypotheses in found), model=self.name)
        return list(found)

    def _ask(self, texts: list[str], options: Options) -> list[Found]:
        return self.translator.translate_nbest(texts, warn=_ignore, **asdict(options))


def _ignore(number: int, message: str) -> None:
    """Long sentences are cut by design here."""


def _deliver(answers: list[tuple[_Job, Found | Exception]]) -> None:
    for job, answer in answers:
        if job.answer.done():
            continue
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)
