"""`deepnmt convert`: another toolkit's model to a MODEL folder."""

import argparse

from deepnmt.commands.options import add_options
from deepnmt.errors import InputError

EXAMPLE = """deepnmt convert opus-mt-en-de --out MODEL
  deepnmt convert checkpoint_avg.pt --from dlcl --out MODEL \\
      --source-lang en --target-lang de --codes codes \\
      --source-dict dict.en.txt --target-dict dict.de.txt
  deepnmt convert model_step_100000.pt --from opennmt-py --out MODEL \\
      --source-lang en --target-lang de --tokenizer source.model target.model
  deepnmt convert MODEL --fold --out PLAIN"""
FORMATS = {
    "marian": "folder of a Marian or OPUS-MT model, with Marian's .npz or in Hugging Face format",
    "m2m100": "folder in Hugging Face format",
    "nllb": "folder in Hugging Face format",
    "fsmt": "folder in Hugging Face format (fairseq's WMT19 models)",
    "sockeye": "folder of a Sockeye 3 model, or a file of parameters in it",
    "exported": "folder written by `deepnmt export --to huggingface`",
    "dlcl": "checkpoint of the paper authors' code, or an .npz of its parameters",
    "fairseq": "checkpoint of a fairseq Transformer",
    "opennmt-py": "checkpoint of an OpenNMT-py Transformer, version 2 or 3",
}
OPTIONS = {
    "checkpoint PATH": "checkpoint or model folder to convert",
    "--out MODEL": "model folder to write",
    "--fold": "write a MODEL with deepnorm, admin, layer-scale or scaled sub-layers as an equivalent plain model",
    "--overwrite": "replace an existing MODEL folder",
}
TEXT = {
    "--source-dict FILE": "fairseq dictionary of the source, for dlcl and fairseq",
    "--target-dict FILE": "fairseq dictionary of the target (default: --source-dict)",
    "--codes FILE+": "subword-nmt codes: one file for both sides, or one per side",
    "--tokenizer FILE+": "SentencePiece .model files, instead of --codes: one for both sides, or one per side",
    "--source-lang CODE": "source language, if the folder does not name it",
    "--target-lang CODE": "target language, if the folder does not name it",
    "--pretokenizer {none,moses,jieba}+": "word tokeniser applied before subwords: none, moses or jieba; one for both "
    "sides, or one per side (default: moses with --codes, none with --tokenizer)",
    "--lowercase": "the model was trained on lowercased text",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS, "--out")
    formats = "; ".join(f"{name}: {what}" for name, what in FORMATS.items()) + " (default: detected, for a folder)"
    parser.add_argument(
        "--from", dest="toolkit", choices=FORMATS, metavar="FORMAT", default=argparse.SUPPRESS, help=formats
    )
    about = "for dlcl, fairseq, opennmt-py and sockeye; without these the MODEL cannot translate text"
    add_options(parser.add_argument_group("text", about), TEXT)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.size import describe
    from deepnmt.api.convert import convert, fold

    options = vars(arguments)
    if options.pop("fold", False):
        if options.keys() - {"checkpoint", "out", "overwrite"}:
            raise InputError("--fold converts a MODEL folder and takes no options but --out and --overwrite")
        model, difference = fold(arguments.checkpoint, arguments.out, overwrite="overwrite" in options)
        print(f"logits agree with those of {arguments.checkpoint} to {difference:.0e} of the largest")
    else:
        model = convert(**options)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {parameters:,} parameters, {describe(model.config)}")
    if not (arguments.out / "tokenizer.source.json").exists():
        print("it has no tokenisers; to translate text, convert again with --codes or --tokenizer")
