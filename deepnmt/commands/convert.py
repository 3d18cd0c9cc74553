"""`deepnmt convert`: a model of another toolkit becomes a MODEL folder."""

import argparse

from deepnmt.commands.options import add_options

EXAMPLE = """deepnmt convert opus-mt-en-de --out MODEL
  deepnmt convert checkpoint_avg.pt --from dlcl --out MODEL --source-lang en --target-lang de \\
                  --source-dict dict.en.txt --target-dict dict.de.txt --codes codes
  deepnmt convert MODEL --fold --out PLAIN"""
FORMATS = {
    "marian": "a folder of Marian or OPUS-MT, as Marian's .npz or in Hugging Face's format",
    "m2m100": "a folder of Hugging Face",
    "nllb": "a folder of Hugging Face",
    "fsmt": "a folder of Hugging Face (fairseq's models of WMT19)",
    "exported": "what deepnmt export --to huggingface wrote",
    "dlcl": "a checkpoint of the paper's authors, or an .npz of its parameters",
    "fairseq": "a checkpoint of its transformer",
}
OPTIONS = {
    "checkpoint PATH": "checkpoint or folder that another toolkit has written",
    "--out MODEL": "the folder to write",
    "--fold": "make the plain model that equals a MODEL whose sub-layers are deepnorm, admin, layer-scale or scaled",
    "--overwrite": "replace an existing MODEL folder",
}
TEXT = {
    "--source-dict F": "fairseq's dictionary of the source",
    "--target-dict F": "dictionary of the target (default: --source-dict)",
    "--codes F+": "subword-nmt codes: for both sides, or one each",
    "--source-lang en": "language of the source, if the folder does not say it",
    "--target-lang de": "language of the target, if the folder does not say it",
    "--pretokenizer {none,moses,jieba}+": "how words were split before subwords: none, moses, jieba; for both or one "
    "each (default: moses)",
    "--lowercase": "the model was trained on lowercased text",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS, "--out")
    formats = "; ".join(f"{name}: {what}" for name, what in FORMATS.items()) + " (default: recognised from a folder)"
    parser.add_argument("--from", dest="toolkit", choices=FORMATS, metavar="FORMAT", help=formats)
    about = "dlcl and fairseq: with these the MODEL translates, without them it holds the network alone"
    add_options(parser.add_argument_group("text", about), TEXT)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.size import describe
    from deepnmt.api.convert import convert, fold

    options = vars(arguments)
    if options.pop("fold", False):
        model, difference = fold(arguments.checkpoint, arguments.out, overwrite="overwrite" in options)
        print(f"the same logits as {arguments.checkpoint}, to {difference:.0e} of the largest")
    else:
        model = convert(**options)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {parameters:,} parameters, {describe(model.config)}")
    if not (arguments.out / "tokenizer.source.json").exists():
        print("no tokenisers in it: give --source-dict and --codes to translate with it")
