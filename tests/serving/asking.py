"""A client for the application without a network, a translator without a model, and the two together."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
from phrasebook import phrase_tokenizers

from deepnmt.decoding.alignment import Alignment
from deepnmt.decoding.glossary import Glossary
from deepnmt.decoding.translator import Hypothesis
from deepnmt.serving.limits import Limits
from deepnmt.serving.models import Models, ServedModel
from deepnmt.serving.prometheus import Metrics
from deepnmt.serving.running import address_of, make_server, open_socket
from deepnmt.serving.server import create_app

JSON = {"content-type": "application/json"}


class Shouter:
    """Says everything in capitals; the second best has an exclamation mark, and so on.

    Fails on the word `poison`. `held` keeps it from answering, `calls` has what it was asked in one go.
    """

    def __init__(self, defaults=None):
        self.defaults = defaults or {}
        self.calls = []
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()

    def translate_nbest(self, texts, *, warn, keep_placeholders, beam, length_penalty, nbest, alignments, terms):
        self.calls.append((list(texts), {"beam": beam, "length_penalty": length_penalty, "nbest": nbest}))
        self.entered.set()
        assert self.free.wait(30)
        if any("poison" in text for text in texts):
            raise FloatingPointError("poison")
        return [[self._said(text, rank, alignments) for rank in range(nbest)] for text in texts]

    def glossary(self, terms, max_symbols):
        return Glossary(terms, phrase_tokenizers(), max_symbols)

    def _said(self, text, rank, alignments):
        said = text.upper() + "!" * rank
        words = text.split()
        alignment = Alignment(words, said.split(), np.eye(len(words), dtype=np.float32)) if alignments else None
        return Hypothesis(said, -1.0 - rank, -2.0 - rank, said.split(), alignment)

    @contextmanager
    def held(self):
        self.free.clear()
        self.entered.clear()
        try:
            yield
        finally:
            self.free.set()


def shouting_app(*pairs, translators=None, allow_origins=(), defaults=None, **limits):
    """An application whose models, named like en-de, shout."""
    limits, metrics = Limits(**{"cache_megabytes": 0, **limits}), Metrics()
    models = []
    for i, name in enumerate(pairs or ("en-de",)):
        translator = translators[i] if translators else Shouter(defaults)
        models.append(ServedModel(name, tuple(name.split("-")[:2]), translator, limits, metrics))
    return create_app(Models(models), limits, metrics, allow_origins)


@dataclass
class Answer:
    status: int
    headers: dict
    chunks: list

    @property
    def body(self):
        return b"".join(self.chunks)

    def json(self):
        return json.loads(self.body)

    def lines(self):
        return [json.loads(line) for line in self.body.splitlines()]


async def asking(app, method, path, body=b"", headers=None, leave=None, pieces=1, reads=10**9):
    """One request. `leave` is an event after which the client is gone; the body comes in so many `pieces`.

    The client `reads` so many chunks of the answer and then no more.
    """
    if not isinstance(body, bytes):
        body, headers = json.dumps(body).encode(), {**JSON, **(headers or {})}
    split = urlsplit(path)
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": split.path, "raw_path": split.path.encode(), "query_string": split.query.encode(), "root_path": "",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in (headers or {}).items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    size = max(-(-len(body) // pieces), 1)
    coming = [body[i : i + size] for i in range(0, len(body), size)] or [b""]
    answer = Answer(0, {}, [])

    async def receive():
        if coming:
            return {"type": "http.request", "body": coming.pop(0), "more_body": bool(coming)}
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.start":
            assert not answer.status, "two answers to one request"
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        elif len(answer.chunks) == reads:
            await asyncio.Event().wait()
        elif message.get("body"):
            answer.chunks.append(message["body"])

    await app(scope, receive, send)
    return answer


def ask(app, method, path, body=b"", headers=None, **more):
    return asyncio.run(asking(app, method, path, body, headers, **more))


def post(app, fields, **more):
    return ask(app, "POST", "/translate", fields, **more)


def service(app):
    return app.state.service


@contextmanager
def listening(app):
    """The address at which a thread serves `app`."""
    with open_socket("127.0.0.1", 0) as opened:
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield address_of(opened)
        finally:
            server.should_exit = True
            thread.join()
            service(app).models.close()
