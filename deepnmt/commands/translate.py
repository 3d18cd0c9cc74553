"""`deepnmt translate`: translate lines of text and documents, through pipes or from file to file."""

import argparse

from deepnmt.commands.options import CHUNK, LANGUAGES, SHORTLIST, add_options, add_translation_options, for_translation
from deepnmt.decoding.documents.formats import FORMATS

EXAMPLE = """deepnmt translate MODEL < news.en > news.de
  # a file; run it again to resume after an interruption
  deepnmt translate MODEL --input news.en.gz --output news.de
  # an ensemble; the four best translations with scores
  deepnmt translate MODEL1 MODEL2 --input news.en --nbest 4 --json
  # the untranslated messages of a catalogue
  deepnmt translate MODEL --input app.po --output app.de.po"""
OPTIONS = {
    "model MODEL+": "model folder; several form an ensemble",
    "--input FILE": "raw text, one sentence per line, or a document (default: standard input)",
    "--output FILE": "file to write (default: standard output)",
    f"--format {{{','.join(FORMATS)}}}": "format of the input (default: by file name extension, else lines)",
    "--prefixes FILE": "forced beginnings of the translations, one per line",
    "--terms FILE": "glossary: lines of a source term, a tab and its required translation",
}
OUTPUT = {
    "--scores": "write the score and a tab before each translation",
    "--alignments": "write a tab and word links such as 0-0 1-2 (source-target) after each translation",
    "--nbest N": "write the N best translations of each line: line number, score, text",
    "--json": "write one JSON object per line, with all of the above",
}
# Of `translate_file`, where they differ.
PARAMETERS = {"input": "source", "output": "out", "format": "file_format", "json": "as_json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS | LANGUAGES | CHUNK | SHORTLIST)
    add_options(parser.add_argument_group("output of lines (one per input line, unless --nbest)"), OUTPUT)
    add_translation_options(parser)


def run(arguments: argparse.Namespace) -> None:
    options = for_translation(arguments)
    from deepnmt.api.translate import translate_file

    translate_file(**{PARAMETERS.get(name, name): value for name, value in options.items()})
