"""Requests made to harm: the server answers each in little time and memory, and keeps answering others."""

import asyncio
import gc
import json
import time
import tracemalloc
from datetime import datetime
from itertools import pairwise

import numpy as np
from asking import Shouter, ask, asking, post, service, shouting_app
from pytest import fixture, mark

from deepnmt.decoding.alignment import Alignment
from deepnmt.decoding.translator import Hypothesis

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\na\r\n'
JSON = "application/json"
HOSTILE = {
    "many parts": (MULTIPART, b"--x\r\n\r\n" * 40_000),
    "many named parts": (MULTIPART, PART * 60_000),
    "one part of many lines": (MULTIPART, b"--x\r\n" + b"a: b\r\n" * 600_000 + b"\r\n\r\n--x--"),
    "line ends": (MULTIPART, b"--x\r\n\r\n" + b"\r\n" * 1_900_000 + b"--x--"),
    "dashes": (MULTIPART, b"--x\r\n\r\n" + b"-" * 3_900_000),
    "nested parts": (MULTIPART, b"--x\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n" * 60_000),
    "an endless disposition": (MULTIPART, b"--x\r\nContent-Disposition: form-data" + b'; name="' * 400_000),
    "a boundary of dashes": ("multipart/form-data; boundary=" + "-" * 8_000, b"-" * 3_900_000),
    "a type of quotes": ('multipart/form-data; boundary="' + '\\";' * 5_000, b"x" * 1_000),
    "many fields": (FORM, b"a&" * 1_900_000),
    "escapes": (FORM, b"q=" + b"%ff" * 1_300_000),
    "deep lists": (JSON, b'{"text": ' + b"[" * 600 + b"]" * 600 + b"}"),
    "deeper lists": (JSON, b'{"text": ' + b"[" * 900_000 + b"]" * 900_000 + b"}"),
    "deep tables": (JSON, b'{"a":' * 600 + b"1" + b"}" * 600),
    "many keys": (JSON, json.dumps({str(i): i for i in range(250_000)}).encode()),
    "many texts": (JSON, json.dumps({"text": ["a"] * 700_000}).encode()),
    "halves of characters": (JSON, b'{"text": "' + b"\\ud800" * 600_000 + b'"}'),
} | {
    f"a line of {unit}": (JSON, json.dumps({"text": unit * (99_000 // len(unit))}).encode())
    for unit in ("x", ".", "word ", "a.\u200b", "א. ", "<")
} | {
    name: (JSON, json.dumps({"q": document, "target": "de", "format": "html"}).encode())
    for name, document in {
        "tags": "<b>" * 33_000,
        "tags without end": "<a " * 33_000,
        "comments without end": "<!--" * 25_000,
        "quotes without end": "<a b='" * 16_000,
        "scripts without end": "<script>" * 12_000,
        "closing tags": "<i>" * 15_000 + "</b>" * 12_000,
        "empty elements": "<b></b>" * 14_000 + "a",
        "declarations": "<!a " * 25_000,
        "sections": "<![CDATA[" * 11_000,
        "entities": "&" * 100_000,
        "one word in many tags": "<b>" * 12_000 + "a" + "</b>" * 12_000,
        "a tag for each letter": "<b>a</b>" * 12_000,
    }.items()
}  # fmt: skip


@fixture(scope="module")
def small_heap():
    """The garbage collector leaves out the objects of earlier tests, which took it 0.7 s and which no server has."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@mark.parametrize(("kind", "body"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_body_keeps_nobody_waiting(small_heap, caplog, kind, body):
    """What the event loop does in one piece is what everyone else waits for."""
    app = shouting_app()

    async def run():
        ticks, done = [time.thread_time()], asyncio.Event()  # of the event loop's thread: others may work meanwhile

        async def tick():
            while not done.is_set():
                await asyncio.sleep(0.005)
                ticks.append(time.thread_time())

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        answer = await asking(app, "POST", "/translate", body, {"content-type": kind}, pieces=20)
        ticks.append(time.thread_time())
        done.set()
        await ticking
        return answer, ticks

    started = time.process_time()
    answer, ticks = asyncio.run(run())
    assert answer.status < 500, answer.json()
    if answer.status == 200 and "text" in (fields := json.loads(body)):
        assert answer.json()["translations"][0]["text"].replace(" ", "") == fields["text"].upper().replace(" ", "")
    assert max(after - before for before, after in pairwise(ticks)) < 0.3
    assert time.process_time() - started < 3
    assert len(caplog.text) < 1_000


class Aligner(Shouter):
    """As costly as a translation can be: every hypothesis has an alignment of 300 by 300 words."""

    def __init__(self):
        super().__init__()
        self.words = [f"w{i}" for i in range(300)]
        self.weights = np.array([[1 / (300 + i + j) for j in range(300)] for i in range(300)], np.float32)

    def _said(self, text, rank, alignments):
        alignment = Alignment(self.words, self.words, self.weights.copy()) if alignments else None
        return Hypothesis(text.upper(), -1.0, -2.0, self.words, alignment)


def test_the_cache_is_bounded_in_bytes_with_alignments_counted():
    app = shouting_app(translators=[Aligner()], cache_megabytes=4, batch_wait=0.0)
    rich = {"beam": 16, "nbest": 16, "alignments": True}
    post(app, {"text": "warm up", **rich})
    gc.collect()
    tracemalloc.start()
    try:
        for i in range(3):
            assert post(app, {"text": f"sentence {i}", **rich}).status == 200
        gc.collect()
        grown, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 6e6
    assert service(app).models[0].cache.size <= 4e6
    assert peak < 55e6, "with the answer of 11 MB that the client holds"


def test_what_the_cache_counts_is_about_what_it_holds():
    app = shouting_app(cache_megabytes=50, batch_wait=0.0)
    post(app, {"text": "warm up"})
    for fields in ({}, {"nbest": 4, "alignments": True}):
        gc.collect()
        before = service(app).models[0].cache.size
        tracemalloc.start()
        try:
            for i in range(3):
                post(app, {"text": "\n".join(f"Sentence number {i} {j} of this text." for j in range(100)), **fields})
            service(app).models[0].translator.calls.clear()
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        counted = service(app).models[0].cache.size - before
        assert 0.7 * held < counted < 3 * held


def test_ignored_fields_are_not_kept_while_a_request_waits():
    app = shouting_app()
    fields = {"q": "house", "target": "de", "source": "en", "ignored": "\N{GRINNING FACE}" + "x" * 1_000_000}
    body = json.dumps(fields, ensure_ascii=False).encode()

    async def run():
        with service(app).models[0].translator.held():
            tracemalloc.start()
            try:
                waiting = [asyncio.create_task(asking(app, "POST", "/translate", body)) for _ in range(20)]
                while service(app).requests < 20:
                    await asyncio.sleep(0.01)
                for _ in range(500):  # a thread that has just parsed a body drops it only when it runs again
                    if (held := tracemalloc.get_traced_memory()[0]) < 10e6:
                        break
                    await asyncio.sleep(0.01)
            finally:
                tracemalloc.stop()
        return held, [answer.status for answer in await asyncio.gather(*waiting)]

    held, statuses = asyncio.run(run())
    assert statuses == [200] * 20
    assert held < 10e6


def test_an_answer_that_would_be_too_long_is_refused_and_can_be_streamed():
    app = shouting_app(translators=[Aligner()], max_answer_bytes=3_000_000, batch_wait=0.0)
    fields = {"text": "One.\nTwo.\nThree.", "beam": 8, "nbest": 8, "alignments": True}
    answer = post(app, fields)
    assert answer.status == 413
    assert answer.json()["error"].startswith("the answer is longer than 3,000,000 bytes; ")
    assert service(app).requests == 0
    assert post(app, {**fields, "stream": True}).lines()[-1] == {"done": True}
    assert post(app, {**fields, "nbest": 1}).status == 200


def test_rich_requests_count_for_more_at_the_gate():
    app = shouting_app(max_waiting_characters=300)
    translator = service(app).models[0].translator

    async def run():
        with translator.held():
            rich = {"text": "x" * 50, "nbest": 4, "alignments": True}
            taken = asyncio.create_task(asking(app, "POST", "/translate", rich))
            while service(app).requests < 1:
                await asyncio.sleep(0.001)
            refused = await asking(app, "POST", "/translate", rich)
        return await taken, refused

    assert [answer.status for answer in asyncio.run(run())] == [200, 429]


class Breakable(Shouter):
    broken = False

    def translate_nbest(self, texts, **settings):
        if self.broken:
            raise RuntimeError("out of memory")
        return super().translate_nbest(texts, **settings)


def test_health_tells_when_the_model_fails_since_when_and_that_it_recovered(caplog):
    translator = Breakable()
    app = shouting_app("en-de", "de-en", translators=[translator, Shouter()])
    assert ask(app, "GET", "/health").json()["status"] == "ok"
    assert post(app, {"text": "poison"}).status == 500
    assert ask(app, "GET", "/health").status == 200, "one sentence that cannot be translated is no failing model"

    translator.broken = True
    before = time.time()
    assert post(app, {"text": "a"}).status == 500
    health = ask(app, "GET", "/health")
    assert (health.status, health.json()["status"]) == (503, "failing")
    (failing,) = health.json()["failing"]
    assert failing["model"] == "en-de"
    assert failing["batches"] >= 1
    assert failing["error"] == "RuntimeError"
    assert abs(datetime.fromisoformat(failing["since"]).timestamp() - before) < 30
    assert 'deepnmt_model_failing{model="en-de"} 1' in ask(app, "GET", "/metrics").body.decode()

    translator.broken = False
    assert post(app, {"text": "a"}).status == 200
    assert ask(app, "GET", "/health").json() == {"status": "ok", "models": ["en-de", "de-en"], "failing": []}


def test_the_model_s_own_decoding_settings_are_used_unless_a_request_says_otherwise():
    app = shouting_app(defaults={"beam": 2, "length_penalty": 1.2})
    translator = service(app).models[0].translator
    post(app, {"text": "a"})
    post(app, {"text": "b", "beam": 3})
    post(app, {"q": "c", "target": "de"})
    post(app, {"q": "d", "target": "de", "alternatives": 3})
    post(app, {"text": "e", "nbest": 3})
    asked = [(settings["beam"], settings["length_penalty"], settings["nbest"]) for _, settings in translator.calls]
    assert asked == [(2, 1.2, 1), (3, 1.2, 1), (2, 1.2, 1), (4, 1.2, 4), (3, 1.2, 3)]
