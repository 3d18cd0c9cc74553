"""`deepnmt serve`: models behind HTTP, with a page to translate on."""

import argparse
import sys

from deepnmt.devices import choose_device, limit_shape_caches, use_threads
from deepnmt.errors import InputError
from deepnmt.progress import say

EXAMPLE = """deepnmt serve MODEL                                     then open http://127.0.0.1:8000
  deepnmt serve en-de=runs/a/model de-en=runs/b/model     several models, by name or languages"""

LIMITS = (
    ("max-characters", int, "of all texts of one request; more is refused with 413 (100000)"),
    ("max-waiting-characters", int, "of all requests at work; more is refused with 429 (1000000)"),
    ("max-requests", int, "at work at once; more are refused with 429 (512)"),
    ("timeout", float, "seconds for an answer, then 503; for the next sentence of a stream (60)"),
    ("max-batch-sentences", int, "translated together; 1 turns batching off (64)"),
    ("batch-wait", float, "seconds the first sentence of a batch waits for others (0.005)"),
    ("cache-sentences", int, "translations remembered for each model; 0: none (4096)"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="+", metavar="MODEL", help="a model folder, or NAME=FOLDER; the first is default"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (127.0.0.1: only here)")
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="(8000) 0: any free one")
    parser.add_argument("--device", default=None, metavar="cpu|cuda", help="default: cuda where there is one")
    parser.add_argument(
        "--precision", default="fp32", metavar="fp32|bf16|fp16|int8", help="(fp32) int8: CPU; fp16: GPU"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU (all cores that this process may use)")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="O",
        help="let pages of this origin use the server from a browser; * for all (none)",
    )
    parser.add_argument(
        "--grace", type=float, default=30.0, metavar="S", help="seconds to finish when told to end (30)"
    )
    parser.add_argument("--access-log", action="store_true", help="a line on standard error for each request")
    group = parser.add_argument_group("limits and batching")
    for name, kind, text in LIMITS:
        metavar = "N" if kind is int else "S"
        group.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar=metavar, help=text)


def run(arguments: argparse.Namespace) -> None:
    limit_shape_caches()
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f"deepnmt serve needs {error.name}: pip install 'deepnmt[serve]'") from error
    import logging

    from deepnmt.serving.limits import Limits
    from deepnmt.serving.metrics import Metrics
    from deepnmt.serving.models import load_models
    from deepnmt.serving.running import address_of, open_socket, run_server
    from deepnmt.serving.server import create_app

    names = [name.replace("-", "_") for name, _, _ in LIMITS]
    try:
        limits = Limits(**{name: value for name, value in vars(arguments).items() if name in names})
    except ValueError as error:
        raise InputError(str(error)) from error
    if arguments.grace < 0:
        raise InputError(f"--grace must be at least 0, not {arguments.grace:g}")
    device = _device(arguments)
    logging.basicConfig(level=logging.INFO, format="deepnmt: %(message)s", stream=sys.stderr)
    metrics = Metrics()
    with open_socket(arguments.host, arguments.port) as listening:
        shelf = load_models(arguments.model, device, arguments.precision, limits, metrics)
        app = create_app(shelf, limits, metrics, tuple(arguments.allow_origin))
        listening.listen(2048)
        address = address_of(listening)
        for model in shelf.models:
            say(f"serving {model.name} ({model.source} to {model.target})")
        say(f"open {address} to translate; the API is at {address}/docs")
        run_server(app, listening, arguments.grace, arguments.access_log)


def _device(arguments: argparse.Namespace) -> str:
    use_threads(arguments.threads)
    return choose_device(arguments.device)
