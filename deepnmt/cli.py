"""The command `deepnmt`: a table of commands, each in its own file under `commands/` and imported on demand.

Such a file has `EXAMPLE`, `add_arguments` and `run`; only `run` may import torch, so that `--help` is immediate.
"""

import argparse
import os
import platform
import re
import sys
from importlib import import_module, metadata
from io import TextIOWrapper
from types import ModuleType
from typing import NoReturn

from deepnmt import __version__
from deepnmt.errors import InputError, RunError
from deepnmt.settings import did_you_mean

COMMANDS = {
    "demo": "train a small model on a real corpus and try it, in minutes",
    "corpus": "download a small parallel corpus to experiment with",
    "prepare": "clean raw parallel text, learn subwords, and write a DATASET",
    "presets": "list the bundled recipes, or show the settings of one",
    "train": "train a model from a recipe, or resume a run",
    "average": "average checkpoints of a run into a MODEL folder",
    "shortlist": "make a lexical shortlist, for faster translation on a CPU",
    "translate": "translate text or documents, from a pipe or file to file",
    "backtranslate": "make synthetic parallel text from monolingual text",
    "distill": "translate training text with a teacher, for a smaller student",
    "evaluate": "translate a test set and score it",
    "score": "score translations with BLEU, chrF and TER, with signatures",
    "likelihood": "score translations by their probability (forced decoding)",
    "serve": "serve models over HTTP, with a web page for translating",
    "inspect": "show sizes, weights, layers, gradients and learning curves",
    "bench": "measure how fast a recipe trains or generates on this machine",
    "convert": "convert another toolkit's model to a MODEL folder",
    "export": "export a MODEL to CTranslate2, Hugging Face, Marian or ONNX",
    "reproduce": "run the paper's experiments or your own, and report the results",
    "completion": "print the tab completion script of a shell",
}


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of a text that has some, and wraps others."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kind = argparse.RawDescriptionHelpFormatter if "\n" in text else argparse.HelpFormatter
        return kind._fill_text(self, text, width, indent)


class _Parser(argparse.ArgumentParser):
    """Reports an error in one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # like the text files, in any locale
    try:
        parser, arguments, command = _parse(argv)
        given = {name for name, value in vars(arguments).items() if value not in (None, [])}
        try:
            command.run(arguments)
        except InputError as error:
            raise InputError(_with_options(str(error), parser, given)) from error
        sys.stdout.flush()
    except (InputError, RunError) as error:
        print(f"deepnmt: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt as error:
        print(f"deepnmt: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error. Keep Python from flushing into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("deepnmt"):
            raise
        remedy = "run `make install` or `pip install -e .` in the folder of deepnmt"
        print(f"deepnmt: {sys.executable} lacks the package {error.name}; {remedy}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"deepnmt: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        return 1
    return 0


def _parse(argv: list[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace, ModuleType]:
    about = "Train, study and serve translation models with very deep Transformers."
    commands = "\n".join(f"  {name:<15}{summary}" for name, summary in COMMANDS.items())
    parser = _Parser(
        prog="deepnmt",
        description=f"{about}\n\ncommands:\n{commands}",
        epilog="`deepnmt COMMAND --help` describes a command. New here? Start with `deepnmt demo`.",
        formatter_class=_Help,
        usage="deepnmt COMMAND [arguments]",
    )
    parser.add_argument(
        "--version", action="store_true", help="show the versions of deepnmt, Python and torch, and exit"
    )
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv[:1] or ["--help"])
    if asked.version:
        print(_versions())
        raise SystemExit
    name = asked.command
    if name not in COMMANDS:
        parser.error(f"unknown command {name}{did_you_mean(name, COMMANDS)}")

    own, command = _parser(name)
    arguments, unknown = own.parse_known_intermixed_args(argv[1:])  # an override may follow an option
    if unknown:
        options = (option for action in own._actions for option in action.option_strings)
        own.error(f"unknown argument {unknown[0]}{did_you_mean(unknown[0], options)}")
    return own, arguments, command


def _parser(name: str) -> tuple[argparse.ArgumentParser, ModuleType]:
    command = import_module(f"deepnmt.commands.{name}")
    parser = _Parser(
        prog=f"deepnmt {name}",
        description=COMMANDS[name],
        epilog=f"example:\n  {command.EXAMPLE}",
        formatter_class=_Help,
    )
    command.add_arguments(parser)
    return parser, command


def _with_options(message: str, parser: argparse.ArgumentParser, given: set[str]) -> str:
    """An error of the Python API in the terms of the command line: `hold_out = 5` is `--hold-out 5`.

    A name alone is replaced if no English word looks like it or if it is in backticks (`out`, `resume=True`), and a
    name with a value if the option was given: others are settings of a recipe or of a model.
    """
    for action in parser._actions:
        if action.option_strings and action.const is not False:
            flag, name = action.option_strings[-1], rf"(?<![\w./'-]){action.dest}"
            message = re.sub(f"`{action.dest}(?:=True)?`", flag, message)
            if action.dest in given:
                message = re.sub(f"{name} (?:= (?!true|false)|(?=must be ))", f"{flag} ", message)
            if "_" in action.dest:
                message = re.sub(rf"{name}(?![\w./'-]| = )", flag, message)
    return message


def _versions() -> str:
    """What a bug report needs, without importing torch."""
    try:
        torch = f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        torch = "no torch"
    system = f"{platform.system()} {platform.machine()}"
    return f"deepnmt {__version__} (Python {platform.python_version()}, {torch}, {system})"
