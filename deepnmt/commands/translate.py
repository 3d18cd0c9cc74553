"""`deepnmt translate`: raw text in, raw text out, through pipes or from file to file."""

import argparse
from pathlib import Path

from deepnmt.commands.options import add_translation_options, settings_in
from deepnmt.decoding.config import TranslationConfig
from deepnmt.devices import tune_for_translation, use_threads

EXAMPLE = """deepnmt translate MODEL < news.en > news.de
  deepnmt translate MODEL --input news.en.gz --output news.de          run again, it resumes
  deepnmt translate MODEL1 MODEL2 --input news.en --nbest 4 --json     an ensemble, the four best with scores"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="+", type=Path, metavar="MODEL", help="a model folder; several are an ensemble")
    parser.add_argument("--input", type=_path, metavar="F", help="one sentence per line (default: standard input)")
    parser.add_argument("--output", type=_path, metavar="F", help="file to write (default: standard output)")
    output = parser.add_argument_group("output (one line per input line, unless --nbest)")
    output.add_argument("--scores", action="store_true", help="write the score and a tab before each translation")
    output.add_argument(
        "--alignments", action="store_true", help="write a tab and links 0-0 1-2 (source-target words) after it"
    )
    output.add_argument(
        "--nbest", type=int, default=argparse.SUPPRESS, metavar="N", help="N lines each: line number, score, text"
    )
    output.add_argument("--json", action="store_true", help="write one JSON object per line, with all of these")
    parser.add_argument(
        "--prefixes", type=Path, metavar="F", help="forced beginnings of the translations, one per line"
    )
    add_translation_options(parser)
    parser.add_argument("--chunk", type=int, metavar="N", help="lines sorted by length and translated together")


def _path(text: str) -> Path | None:
    return None if text == "-" else Path(text)


def run(arguments: argparse.Namespace) -> None:
    tune_for_translation()
    from deepnmt.api.translate import translate_file

    use_threads(arguments.threads)
    names = ("prefixes", "scores", "chunk", "device", "precision")
    translate_file(
        arguments.model,
        arguments.input,
        arguments.output,
        as_json=arguments.json,
        **{name: getattr(arguments, name) for name in names},
        **settings_in(TranslationConfig, arguments),
    )
