"""`deepnmt serve`: models behind HTTP, with a web page."""

import argparse
import logging
import sys

from deepnmt.devices import choose_device, tune_for_translation, use_threads
from deepnmt.errors import InputError
from deepnmt.progress import say
from deepnmt.serving.limits import Limits

EXAMPLE = """deepnmt serve MODEL                                     then open http://127.0.0.1:8000
  deepnmt serve en-de=runs/a/model de-en=runs/b/model     several models, chosen by name or languages"""

LIMITS = {
    "max_characters": "characters of all texts of one request; above: 413",
    "max_waiting_characters": "characters of all requests at work; above: 429",
    "max_requests": "requests at work at once; above: 429",
    "max_connections": "connections open at once; above: 503",
    "timeout": "seconds for an answer, or for the next sentence of a stream; above: 503",
    "max_batch_sentences": "sentences translated together; 1 turns batching off",
    "batch_wait": "seconds the first sentence of a batch waits for others",
    "cache_megabytes": "size of the cache of translations of each model; 0 turns it off",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="+", metavar="MODEL", help="model folder, or NAME=FOLDER; the first is the default"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="0: any free port (%(default)s)")
    parser.add_argument("--device", default=None, metavar="cpu|cuda", help="default: cuda if available")
    parser.add_argument(
        "--precision",
        default="fp32",
        metavar="fp32|bf16|fp16|int8",
        help="int8: CPU only; fp16: GPU only (%(default)s)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all available cores)")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="O",
        help="let web pages of this origin use the server; * for all (default: none)",
    )
    parser.add_argument(
        "--grace", type=float, default=30.0, metavar="S", help="seconds to finish requests on shutdown (%(default)g)"
    )
    parser.add_argument("--access-log", action="store_true", help="log each request to standard error")
    group = parser.add_argument_group("limits and batching")
    for name, text in LIMITS.items():
        default = getattr(Limits, name)
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            default=default,
            metavar="S" if "seconds" in text else "N",
            help=f"{text} (%(default){'g' if isinstance(default, float) else 's'})",
        )


def run(arguments: argparse.Namespace) -> None:
    tune_for_translation()
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f"deepnmt serve needs {error.name}: pip install 'deepnmt[serve]'") from error
    from deepnmt.serving.models import load_models
    from deepnmt.serving.prometheus import Metrics
    from deepnmt.serving.running import address_of, make_server, open_socket
    from deepnmt.serving.server import create_app

    try:
        limits = Limits(**{name: getattr(arguments, name) for name in LIMITS})
    except ValueError as error:
        raise InputError(str(error)) from error
    if arguments.grace < 0:
        raise InputError(f"--grace must be at least 0, not {arguments.grace:g}")
    use_threads(arguments.threads)
    device = choose_device(arguments.device)
    logging.basicConfig(level=logging.INFO, format="deepnmt: %(message)s", stream=sys.stderr)
    metrics = Metrics()
    with open_socket(arguments.host, arguments.port) as listening:
        models = load_models(arguments.model, device, arguments.precision, limits, metrics)
        app = create_app(models, limits, metrics, tuple(arguments.allow_origin))
        listening.listen(2048)
        address = address_of(listening)
        for model in models:
            say(f"serving {model.name} ({model.source} to {model.target})")
        say(f"open {address} to translate; the API is at {address}/docs")
        make_server(app, arguments.grace, arguments.access_log).run(sockets=[listening])
