"""`deepnmt serve`: serve models over HTTP, with a web page."""

import argparse
import logging
import os
import re
import sys
from threading import Thread

from deepnmt.commands.options import MACHINE, SHORTLIST, add_options, add_settings, settings_in
from deepnmt.devices import choose_device, tune_for_translation, use_threads
from deepnmt.errors import InputError
from deepnmt.progress import say
from deepnmt.serving.limits import Limits

EXAMPLE = """deepnmt serve MODEL      # then open http://127.0.0.1:8000
  # several models, chosen by name or languages
  deepnmt serve en-de=runs/a/model de-en=runs/b/model"""
LIMITS = {
    "max_characters": "maximum number of characters per request; status 413 above that",
    "max_waiting_characters": "maximum number of characters of all current requests; status 429 above that",
    "max_requests": "maximum number of concurrent requests; status 429 above that",
    "max_connections": "maximum number of open connections; status 503 above that",
    "timeout": "seconds to wait for an answer, or for the next sentence of a stream; then status 503",
    "max_batch_sentences": "maximum number of sentences per batch; 1 turns batching off",
    "batch_wait": "seconds that the first sentence of a batch waits for others",
    "cache_megabytes": "size of each model's translation cache; 0 turns it off",
}
OPTIONS = {
    "--host HOST": "address to listen on (default: 127.0.0.1)",
    "--port PORT": "port to listen on; 0: any free port (default: 8000)",
    "--grace SECONDS": "time to finish requests on shutdown (default: 30)",
    "--access-log": "log each request to standard error",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "model folder, or NAME=FOLDER; the first is the default"
    parser.add_argument("model", nargs="+", metavar="MODEL", help=text)
    add_options(parser, OPTIONS | MACHINE | SHORTLIST, absent=None)
    parser.set_defaults(host="127.0.0.1", port=8000, grace=30.0, precision="fp32")
    text = "allow web pages of this origin to use the server; * allows all (default: none)"
    parser.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN", help=text)
    text = "glossary applied to every translation: lines of a source term, a tab and its translation; with "
    text += "SOURCE-TARGET= (en-de=FILE), for these languages only; may be repeated"
    parser.add_argument("--terms", action="append", default=[], metavar="FILE", help=text)
    add_settings(parser.add_argument_group("limits and batching"), Limits, LIMITS)


def run(arguments: argparse.Namespace) -> None:
    tune_for_translation()
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f"deepnmt serve needs {error.name}: pip install 'deepnmt[serve]'") from error
    from deepnmt.decoding.translator import in_processes
    from deepnmt.serving.libretranslate import load_detection
    from deepnmt.serving.loading import load_models
    from deepnmt.serving.prometheus import Metrics
    from deepnmt.serving.running import address_of, make_server, open_socket
    from deepnmt.serving.server import create_app

    limits = settings_in(Limits, arguments)
    if arguments.grace < 0:
        raise InputError(f"--grace must be at least 0, not {arguments.grace:g}")
    for origin in arguments.allow_origin:
        if origin not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/]+", origin):
            raise InputError(f"--allow-origin must be * or an origin such as https://example.org, not {origin}")
    use_threads(arguments.threads)
    device = choose_device(arguments.device)
    logging.basicConfig(level=logging.INFO, format="deepnmt: %(message)s", stream=sys.stderr)
    metrics = Metrics()
    with open_socket(arguments.host, arguments.port) as listening:
        models = load_models(
            arguments.model,
            device,
            arguments.precision,
            limits,
            metrics,
            shortlist=bool(arguments.shortlist),
            terms=arguments.terms,
        )
        app = create_app(models, limits, metrics, tuple(arguments.allow_origin))
        # Forked before there are connections, which a fork would keep open.
        with in_processes(*(model.translator for model in models), now=True):
            Thread(target=load_detection, args=(models,), daemon=True).start()
            listening.listen(2048)
            address = address_of(listening)
            for model in models:
                say(f"serving {model.described()}")
            say(f"open {address} to translate; the API is at {address}/docs")
            make_server(app, arguments.grace, arguments.access_log).run(sockets=[listening])
            if not models.close():
                os._exit(0)  # otherwise Python waits for the thread that is in the model
