"""Connections that are opened to harm: silent, slow, cut off or too many."""

import json
import socket
import time
from urllib.parse import urlsplit

from asking import Shouter, listening, post, service, shouting_app
from pytest import fixture, mark

from deepnmt.serving import protocol
from deepnmt.serving.limits import Limits


@fixture
def quick(monkeypatch):
    """An application that gives up after half a second, and its address."""
    app = shouting_app(translators=[Verbose()], max_connections=20, batch_wait=0.0)
    for name, value in (("upload_timeout", 0.5), ("timeout", 0.5)):
        service(app).limits.__dict__[name] = value
    monkeypatch.setattr(protocol, "MIN_READ_BYTES", 1)
    with listening(app) as address:
        yield app, urlsplit(address)


class Verbose(Shouter):
    def _said(self, text, rank, alignments):
        said = super()._said(text, rank, alignments)
        return type(said)(said.text * 20_000, said.score, said.log_prob, said.pieces)


def connect(address, receive_buffer=None):
    opened = socket.socket()
    if receive_buffer:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    opened.connect((address.hostname, address.port))
    opened.settimeout(20)
    return opened


def request(fields, length=None):
    body = json.dumps(fields).encode()
    head = f"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def is_closed(opened):
    """Wait until the server has closed this connection."""
    try:
        while opened.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


@mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nhost: x\r\n",
        request({"text": "a"}) + b"POST /tran",
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nabc",
        request({"text": "a"}, length=1000),
        b"GET /" + b"x" * 100_000,
        b"\x16\x03\x01 rubbish\r\n\r\n",
    ],
    ids=["nothing", "half a header", "one and a half requests", "a body nobody wants", "half a body", "long", "TLS"],
)
def test_what_does_not_become_a_request_is_disconnected(quick, sent):
    app, address = quick
    with connect(address) as opened:
        opened.sendall(sent)
        started = time.monotonic()
        assert is_closed(opened)
        assert time.monotonic() - started < 10
    assert service(app).requests == service(app).received_bytes == 0


@mark.parametrize("stream", [False, True])
def test_a_client_that_does_not_read_its_answer_is_disconnected(quick, stream):
    app, address = quick
    text = " ".join(f"Sentence number {i}." for i in range(20))  # an answer of 7 MB
    with connect(address, receive_buffer=4096) as opened:
        opened.sendall(request({"text": text, "stream": stream}))
        opened.recv(10)
        deadline = time.monotonic() + 20
        while service(app).requests and time.monotonic() < deadline:
            time.sleep(0.02)
    assert (service(app).requests, service(app).characters) == (0, 0)


@mark.parametrize("fields", [{}, {"q": "", "target": "de"}])
def test_an_answer_counts_as_work_until_the_client_has_read_it(fields):
    app = shouting_app(translators=[Verbose()], batch_wait=0.0)
    name = "q" if fields else "text"
    fields = {**fields, name: " ".join(f"Sentence number {i}." for i in range(20))}
    with listening(app) as address, connect(urlsplit(address), receive_buffer=4096) as opened:
        opened.sendall(request(fields))
        opened.recv(10)
        assert service(app).requests == 1, "its memory is not free yet"
        size = 0
        while size < 6_000_000:
            size += len(opened.recv(1 << 20))
    assert service(app).requests == 0


def test_connections_beyond_the_limit_are_refused_and_the_others_served(quick):
    _, address = quick
    silent = [connect(address) for _ in range(20)]
    with connect(address) as refused:
        answer = refused.recv(1000)
        assert answer.startswith(b"HTTP/1.1 503 ")
        head, body = answer.split(b"\r\n\r\n")
        assert json.loads(body) == {"error": "too many open connections; try again soon"}
        assert f"content-length: {len(body)}".encode() in head
    silent[0].sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert silent[0].recv(1000).startswith(b"HTTP/1.1 200 ")
    assert all(map(is_closed, silent[1:]))
    with connect(address) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert opened.recv(1000).startswith(b"HTTP/1.1 200 ")
    for opened in silent:
        opened.close()


def test_the_bodies_that_arrive_are_bounded_together():
    app = shouting_app()
    for free, status in ((16, 429), (10**6, 200)):
        service(app).received_bytes = others = Limits().max_received_bytes - free
        assert post(app, {"text": "more than fits"}, pieces=3).status == status
        assert service(app).received_bytes == others
