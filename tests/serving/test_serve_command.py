"""`deepnmt serve` as a process: it comes up, works, and goes down without dropping anybody."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from asking import ask as in_process
from asking import listening, service, shouting_app
from phrasebook import phrases
from pytest import fixture, mark

from deepnmt.cli import main
from deepnmt.data.forks import CAN_FORK
from deepnmt.devices import TRANSLATION_ENVIRONMENT
from deepnmt.serving.limits import Limits
from deepnmt.serving.loading import load_models
from deepnmt.serving.prometheus import Metrics
from deepnmt.serving.running import address_of, make_server, open_socket
from deepnmt.serving.server import create_app


@fixture(autouse=True)
def own_environment(monkeypatch):
    """What the command sets is unset again."""
    for name, capacity in TRANSLATION_ENVIRONMENT.items():
        monkeypatch.setenv(name, capacity)


@fixture
def served(phrase_folder):
    """The process, with two cores, and where it listens."""
    command = [sys.executable, "-m", "deepnmt", "serve", f"phrases={phrase_folder}", "--port", "0"]
    options = ["--cache-megabytes", "0", "--max-batch-sentences", "8", "--grace", "60"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            lines = iter(process.stderr.readline, "")
            address = next(found[1] for line in lines if (found := re.search(r"open (http://\S+) to translate", line)))
            yield process, urlsplit(address)
        finally:
            process.kill()


def connect(address):
    return http.client.HTTPConnection(address.hostname, address.port, timeout=60)


def ask(address, fields):
    connection = connect(address)
    connection.request("POST", "/translate", json.dumps(fields), {"content-type": "application/json"})
    response = connection.getresponse()
    table = json.loads(response.read())
    connection.close()
    return response.status, table


def test_it_serves_and_on_a_signal_finishes_what_it_began_and_refuses_the_rest(served):
    process, address = served
    status, table = ask(address, {"text": "The house is old.", "model": "phrases"})
    assert (status, table["translations"][0]["text"]) == (200, "Das Haus ist alt.")

    sources = [source for source, _ in phrases(400, seed=5)]
    connection = connect(address)
    connection.connect()
    # A reader that is slow to begin: the stream cannot be over before the signal.
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = json.dumps({"text": "\n".join(sources), "stream": True, "alignments": True, "beam": 1})
    connection.request("POST", "/translate", body, {"content-type": "application/json"})
    stream = connection.getresponse()
    assert json.loads(stream.readline())["sentences"] == 400

    process.send_signal(signal.SIGTERM)
    refused = status = None
    while status != 503:
        status, refused = ask(address, {"text": "late"})
    assert refused == {"error": "the server is shutting down and accepts no new requests"}

    *lines, last = [json.loads(line) for line in stream]
    connection.close()
    assert [line["source"] for line in lines] == sources
    assert last == {"done": True}
    assert process.wait(60) == 0
    assert "Traceback" not in process.stderr.read()


@mark.skipif(not CAN_FORK, reason="processes are not forked on this system")
def test_it_goes_on_without_a_worker_process_that_died(served):
    process, address = served
    sources, targets = zip(*phrases(8, seed=5), strict=True)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) >= 2
    for killed in ([], workers):
        for worker in killed:
            os.kill(int(worker), signal.SIGKILL)
        for _ in range(2):
            status, table = ask(address, {"text": "\n".join(sources), "model": "phrases"})
            assert (status, table["translations"][0]["text"].splitlines()) == (200, list(targets))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_second_signal_ends_it_at_once():
    app = shouting_app()
    server = make_server(app)
    server.handle_exit(signal.SIGTERM, None)
    assert (service(app).closed, server.should_exit) == (True, False)
    server.handle_exit(signal.SIGTERM, None)
    assert (server.should_exit, server.force_exit) == (True, True)


@mark.parametrize("fields", [{"text": "a"}, {"text": "One. Two.", "stream": True}])
def test_a_model_that_never_answers_keeps_it_no_longer_than_the_grace(fields, caplog):
    app = shouting_app()
    (model,) = service(app).models
    with open_socket("127.0.0.1", 0) as opened, model.translator.held():
        server = make_server(app, grace=0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        while not server.started:
            time.sleep(0.005)
        connection = connect(urlsplit(address_of(opened)))
        connection.request("POST", "/translate", json.dumps(fields))
        model.translator.entered.wait(30)
        server.handle_exit(signal.SIGTERM, None)
        thread.join(30)
        assert not thread.is_alive()
        if "stream" not in fields:
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())) == (503, {"error": "the server is shutting down"})
        connection.close()
        assert not service(app).models.close(), "the model is still busy"
    assert service(app).requests == 0
    assert "Traceback" not in caplog.text


def test_head_is_answered_like_get_without_a_body():
    with listening(shouting_app()) as address:
        for path in ("/", "/health", "/docs", "/page/app.js"):
            connection = connect(urlsplit(address))
            connection.request("HEAD", path)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            assert int(answer.headers["content-length"]) > 0
            connection.close()


@mark.parametrize("given", ["lr=3/en-de", "a/b=lr=3/en-de", "=lr=3/en-de"])
def test_a_folder_may_have_an_equals_sign_and_a_name_a_slash(phrase_folder, tmp_path, monkeypatch, given):
    (tmp_path / "lr=3").mkdir()
    (tmp_path / "lr=3" / "en-de").symlink_to(phrase_folder)
    monkeypatch.chdir(tmp_path)
    limits, metrics = Limits(), Metrics()
    models = load_models([given], "cpu", "fp32", limits, metrics)
    name = "a/b" if given.startswith("a/b") else "en-de"
    assert [model.name for model in models] == [name]
    answer = in_process(create_app(models, limits, metrics), "GET", f"/models/{name}/connections")
    assert answer.status == 200
    models.close()


@mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a MODEL folder"),
        (["{model}", "{model}"], "two models are called en-de: rename one, as in other={model}"),
        (["{model}", "--timeout", "0"], "--timeout 0.0 must be at least 1"),
        (["{model}", "--grace", "-1"], "--grace must be at least 0, not -1"),
        (
            ["{model}", "--allow-origin", "https://a.org/"],
            "--allow-origin must be * or an origin such as https://example.org, not https://a.org/",
        ),
        (["{model}", "--terms", "missing.tsv"], "missing.tsv does not exist"),
        (["{model}", "--terms", "de-fr={terms}"], "--terms de-fr={terms}: no model translates de-fr"),
        (["{model}", "--terms", "{terms}", "--max-characters", "0"], "--max-characters 0 must be at least 1"),
        (["{model}", "--terms", "{bad}"], "{bad}, line 1: expected a source term, a tab and its translation"),
        (["{model}", "--terms", "en-de={long}"], "en-de={long}: the translation of the term 'house' has "),
        (["{model}", "--threads", "0"], "--threads must be at least 1, not 0"),
        (["{model}", "--port", "99999"], "cannot listen on port 99999: choose a --port from 0 to 65535"),
        (["{model}", "--host", "no such host"], "cannot listen on no such host port 8000"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(phrase_folder, tmp_path, capsys, arguments, message):
    files = {"terms": "house\tHaus\n", "bad": "house\n", "long": "house\t" + "xyz " * 30}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    places = {"model": phrase_folder, **{name: tmp_path / name for name in files}}
    given = [argument.format(**places) for argument in arguments]
    port = [] if "--port" in given or "--host" in given else ["--port", "0"]
    assert main(["serve", *given, *port]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"deepnmt: {message.format(**places)}")
    assert error.count("\n") == 1


def test_a_port_in_use_is_said_at_once(phrase_folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(phrase_folder), "--port", str(port)]) == 2
    expected = (
        f"deepnmt: cannot listen on 127.0.0.1 port {port}: Address already in use (choose another --host or --port)\n"
    )
    assert capsys.readouterr().err == expected


def test_without_the_extra_it_says_what_to_install(phrase_folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve", str(phrase_folder)]) == 2
    assert capsys.readouterr().err == "deepnmt: deepnmt serve needs fastapi: pip install 'deepnmt[serve]'\n"
