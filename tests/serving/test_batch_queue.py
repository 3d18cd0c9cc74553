"""Sentences of many clients in few calls, and nobody's answer lost, mixed up or spoiled by another's."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager

from asking import Shouter
from pytest import mark, raises

from deepnmt.decoding.translator import Translator
from deepnmt.serving import batch_queue
from deepnmt.serving.batch_queue import BatchQueue, Options
from deepnmt.serving.limits import Limits
from deepnmt.serving.prometheus import Metrics


@asynccontextmanager
async def occupied(queue):
    """While inside, the worker is busy with another sentence: what is asked for waits."""
    with queue.translator.held():
        first = queue.submit("first", Options())
        await asyncio.to_thread(queue.translator.entered.wait, 30)
        yield
    assert (await first)[0].text == "FIRST"


def queue_of(translator=None, **limits):
    return BatchQueue(translator or Shouter(), "en-de", Limits(**limits), Metrics())


def said(queue):
    return [texts for texts, _ in queue.translator.calls][1:]


async def answers(futures):
    return [found[0].text for found in await asyncio.gather(*futures)]


async def ask_together(queue, texts):
    async with occupied(queue):
        futures = [queue.submit(text, Options()) for text in texts]
    result = await answers(futures)
    queue.close()
    return result


def test_what_gathers_while_the_model_is_busy_is_translated_in_one_call():
    queue = queue_of()
    texts = [f"text {i}" for i in range(40)]
    assert asyncio.run(ask_together(queue, texts)) == [text.upper() for text in texts]
    assert said(queue) == [texts]


def test_a_batch_is_limited_in_sentences():
    queue = queue_of(max_batch_sentences=16)
    texts = [f"text {i:02}" for i in range(40)]
    assert asyncio.run(ask_together(queue, texts)) == [text.upper() for text in texts]
    assert [len(batch) for batch in said(queue)] == [16, 16, 8]


def test_a_batch_is_limited_in_characters_with_padding():
    queue = queue_of(max_batch_characters=100)
    texts = ["a" * 40, "b" * 10, "c" * 90, "d" * 300, "e"]
    assert asyncio.run(ask_together(queue, texts)) == [text.upper() for text in texts]
    for batch in said(queue):
        assert len(batch) == 1 or len(batch) * max(map(len, batch)) <= 100


def test_a_batch_is_the_oldest_sentence_and_those_most_like_it():
    queue = queue_of(max_batch_sentences=2)
    texts = ["a" * 50, "b", "c" * 48, "d" * 3]
    asyncio.run(ask_together(queue, texts))
    assert said(queue) == [["a" * 50, "c" * 48], ["b", "d" * 3]]


def test_memory_is_returned_once_after_work(monkeypatch):
    returned = []  # by which thread: workers of other tests may still be idling
    monkeypatch.setattr(batch_queue, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(batch_queue, "return_memory", lambda: returned.append(threading.current_thread()))

    async def run():
        queue = queue_of()
        await asyncio.sleep(0.1)
        counts = [returned.count(queue._worker)]
        for _ in range(2):
            await answers([queue.submit("text", Options())])
            deadline = time.monotonic() + 30
            while returned.count(queue._worker) == counts[-1] and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            counts.append(returned.count(queue._worker))
        queue.close()
        return counts

    assert asyncio.run(run()) == [0, 1, 2]


def test_different_options_are_never_mixed():
    async def run():
        queue = queue_of()
        async with occupied(queue):
            futures = [queue.submit(f"t{i}", Options(beam=1 + i % 3)) for i in range(9)]
        result = await answers(futures)
        queue.close()
        return queue.translator.calls[1:], result

    calls, result = asyncio.run(run())
    assert result == [f"T{i}" for i in range(9)]
    assert [(len(texts), settings["beam"]) for texts, settings in calls] == [(3, 1), (3, 2), (3, 3)]


def test_what_is_cancelled_is_not_translated():
    async def run():
        queue = queue_of()
        async with occupied(queue):
            futures = [queue.submit(f"t{i}", Options()) for i in range(4)]
            futures[1].cancel()
            futures[2].cancel()
        result = await answers([futures[0], futures[3]])
        queue.close()
        return said(queue), result

    assert asyncio.run(run()) == ([["t0", "t3"]], ["T0", "T3"])


def test_a_sentence_on_which_the_model_fails_fails_alone():
    async def run():
        queue = queue_of()
        async with occupied(queue):
            futures = [queue.submit(text, Options()) for text in ("a", "poison", "b")]
        with raises(FloatingPointError):
            await futures[1]
        result = await answers([futures[0], futures[2]])
        queue.close()
        return result

    assert asyncio.run(run()) == ["A", "B"]


def test_closing_finishes_what_waits_and_takes_no_more():
    async def run():
        queue = queue_of()
        async with occupied(queue):
            futures = [queue.submit(f"t{i}", Options()) for i in range(3)]
            closing = asyncio.create_task(asyncio.to_thread(queue.close))
            while not queue._closed:
                await asyncio.sleep(0.001)
            with raises(RuntimeError, match="closed"):
                queue.submit("late", Options())
        await closing
        return await answers(futures)

    assert asyncio.run(run()) == ["T0", "T1", "T2"]


def test_answers_for_a_loop_that_is_gone_harm_nobody():
    queue = queue_of()

    async def leave():
        queue.translator.free.clear()
        queue.submit("nobody waits", Options())

    asyncio.run(leave())
    queue.translator.free.set()

    async def come():
        return await answers([queue.submit("somebody", Options())])

    assert asyncio.run(come()) == ["SOMEBODY"]
    queue.close()


def test_metrics_count_sentences_characters_tokens_and_batches():
    queue = queue_of()
    asyncio.run(ask_together(queue, ["one two", "three"]))
    counts = {"sentences_total": 3, "source_characters_total": len("firstone twothree"), "target_tokens_total": 4}
    counts |= {"batch_sentences_count": 2, "batch_sentences_sum": 3}
    for name, count in counts.items():
        assert f'deepnmt_{name}{{model="en-de"}} {count}\n' in queue.metrics.text()


@mark.parametrize(("nbest", "precision"), [(1, "fp32"), (3, "fp32"), (3, "int8")])
def test_together_is_as_good_as_alone(phrase_folder, nbest, precision):
    """The law of batching, with a real model: a translation does not depend on its batch."""
    texts = ["The house is old.", "The garden seems today beautiful.", "The tree was green.", "Something else entirely"]
    translator = Translator(phrase_folder, precision=precision)
    alone = [translator.translate_nbest([text], beam=4, nbest=nbest)[0] for text in texts]

    async def together():
        queue = BatchQueue(translator, "en-de", Limits(batch_wait=0.2, max_batch_sentences=8), Metrics())
        found = await asyncio.gather(*(queue.submit(text, Options(nbest=nbest)) for text in 2 * texts))
        queue.close()
        assert 'deepnmt_batch_sentences_sum{model="en-de"} 8\n' in queue.metrics.text()
        assert 'le="4"} 0' in queue.metrics.text(), "they were not translated together"
        return found

    for expected, found in zip(2 * alone, asyncio.run(together()), strict=True):
        assert [hypothesis.text for hypothesis in found] == [hypothesis.text for hypothesis in expected]
        for one, other in zip(found, expected, strict=True):
            # Sums in another order differ in the last digit, and int8 may then round an input to its neighbour.
            assert abs(one.score - other.score) < (0.02 if precision == "int8" else 1e-3)
