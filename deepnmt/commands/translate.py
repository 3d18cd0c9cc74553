"""`deepnmt translate`: raw text in, raw text out, through pipes or from file to file."""

import argparse

from deepnmt.commands.options import CHUNK, add_options, add_translation_options, for_translation

EXAMPLE = """deepnmt translate MODEL < news.en > news.de
  deepnmt translate MODEL --input news.en.gz --output news.de          run again, it resumes
  deepnmt translate MODEL1 MODEL2 --input news.en --nbest 4 --json     an ensemble, the four best with scores"""
OPTIONS = {
    "model MODEL+": "a model folder; several are an ensemble",
    "--input F": "one sentence per line (default: standard input)",
    "--output F": "file to write (default: standard output)",
    "--source-lang CODE": "language of the input, for a model that has several",
    "--target-lang CODE": "language of the output, for a model that has several",
    "--prefixes F": "forced beginnings of the translations, one per line",
}
OUTPUT = {
    "--scores": "write the score and a tab before each translation",
    "--alignments": "write a tab and links 0-0 1-2 (source-target words) after it",
    "--nbest N": "N lines each: line number, score, text",
    "--json": "write one JSON object per line, with all of these",
}
PARAMETERS = {"input": "source", "output": "out", "json": "as_json"}  # of `translate_file`, where they differ


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS | CHUNK)
    add_options(parser.add_argument_group("output (one line per input line, unless --nbest)"), OUTPUT)
    add_translation_options(parser)


def run(arguments: argparse.Namespace) -> None:
    options = for_translation(arguments)
    from deepnmt.api.translate import translate_file

    translate_file(**{PARAMETERS.get(name, name): value for name, value in options.items()})
