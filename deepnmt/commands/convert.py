"""`deepnmt convert`: a model of another toolkit becomes a MODEL folder."""

import argparse
from pathlib import Path

EXAMPLE = """deepnmt convert opus-mt-en-de --out MODEL
  deepnmt convert checkpoint_avg.pt --from dlcl --out MODEL --source-lang en --target-lang de \\
                  --source-dict dict.en.txt --target-dict dict.de.txt --codes codes
  deepnmt convert MODEL --fold --out PLAIN"""
FORMATS = {
    "marian": "a folder of Marian or OPUS-MT, as Marian's .npz or in Hugging Face's format",
    "m2m100": "Hugging Face's folder",
    "nllb": "the same",
    "fsmt": "the same: fairseq's models of WMT19",
    "exported": "what deepnmt export --to huggingface wrote",
    "dlcl": "a checkpoint of the paper's authors, or an .npz of its parameters",
    "fairseq": "a checkpoint of its transformer",
}
PRETOKENIZERS = ("none", "moses", "jieba")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT_OR_FOLDER", help="what another toolkit has written"
    )
    parser.add_argument(
        "--from",
        dest="toolkit",
        choices=FORMATS,
        metavar="FORMAT",
        help="; ".join(f"{name}: {what}" for name, what in FORMATS.items()) + " (default: recognised from a folder)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="the folder to write")
    parser.add_argument(
        "--fold",
        action="store_true",
        help="make the plain model that equals a MODEL whose sub-layers are deepnorm, admin, layer-scale or scaled",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing MODEL folder")
    text = parser.add_argument_group(
        "text", "dlcl and fairseq: with these the MODEL translates, without them it holds the network alone"
    )
    text.add_argument("--source-dict", type=Path, metavar="F", help="fairseq's dictionary of the source")
    text.add_argument("--target-dict", type=Path, metavar="F", help="dictionary of the target (default: --source-dict)")
    text.add_argument(
        "--codes", type=Path, nargs="+", default=[], metavar="F", help="subword-nmt codes: for both sides, or one each"
    )
    text.add_argument("--source-lang", metavar="en", help="language of the source, if the folder does not say it")
    text.add_argument("--target-lang", metavar="de", help="language of the target, if the folder does not say it")
    text.add_argument(
        "--pretokenizer",
        nargs="+",
        choices=PRETOKENIZERS,
        default=["moses"],
        metavar="NAME",
        help=f"how words were split before subwords: {', '.join(PRETOKENIZERS)}; for both or one each (default: moses)",
    )
    text.add_argument("--lowercase", action="store_true", help="the model was trained on lowercased text")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.size import describe
    from deepnmt.api.convert import convert, fold

    options = vars(arguments)
    if options.pop("fold"):
        model, difference = fold(arguments.checkpoint, arguments.out, overwrite=arguments.overwrite)
        print(f"the same logits as {arguments.checkpoint}, to {difference:.0e} of the largest")
    else:
        model = convert(**options)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {parameters:,} parameters, {describe(model.config)}")
    if not (arguments.out / "tokenizer.source.json").exists():
        print("no tokenisers in it: give --source-dict and --codes to translate with it")
