"""`deepnmt convert`: a checkpoint of another toolkit becomes a MODEL folder."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from deepnmt.errors import InputError
from deepnmt.files import replacing, sha256

if TYPE_CHECKING:
    from deepnmt.data.tokenizer import Tokenizer, TokenizerPair
    from deepnmt.model.config import ModelConfig

EXAMPLE = """deepnmt convert checkpoint_avg.pt --from dlcl --out MODEL --source-lang en --target-lang de \\
      --source-dict dict.en.txt --target-dict dict.de.txt --codes codes"""
FORMATS = ("dlcl", "fairseq")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a torch checkpoint; of dlcl also an .npz of parameters"
    )
    parser.add_argument(
        "--from",
        dest="format",
        choices=FORMATS,
        required=True,
        help="dlcl: the code of the paper's authors; fairseq: its transformer",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="the folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing MODEL folder")
    text = parser.add_argument_group("text", "with these the MODEL translates; without them it holds the network alone")
    text.add_argument("--source-dict", type=Path, metavar="F", help="fairseq's dictionary of the source")
    text.add_argument("--target-dict", type=Path, metavar="F", help="that of the target (default: --source-dict)")
    text.add_argument("--codes", type=Path, nargs="+", metavar="F", help="subword-nmt codes: for both, or one each")
    text.add_argument("--source-lang", metavar="en", help="language code of the source")
    text.add_argument("--target-lang", metavar="de", help="language code of the target")
    text.add_argument(
        "--pretokenizer",
        nargs="+",
        choices=["none", "moses", "jieba"],
        default=["moses"],
        metavar="NAME",
        help="how words were split before subwords: none, moses, jieba; for both, or one each (default: moses)",
    )
    text.add_argument("--lowercase", action="store_true", help="the model was trained on lowercased text")


def run(arguments: argparse.Namespace) -> None:
    _check_out(arguments.out, arguments.overwrite)
    wants_text = _check_text_options(arguments)

    from deepnmt.model.conversion import CONVERTERS
    from deepnmt.model.storage import save_model

    model = CONVERTERS[arguments.format](arguments.file)
    tokenizers = _tokenizers(arguments, model.config) if wants_text else None
    origin = {"format": arguments.format, "file": arguments.file.name, "sha256": sha256(arguments.file)}
    with replacing(arguments.out) as aside:
        save_model(aside, model, {"converted_from": origin})
        if tokenizers is not None:
            tokenizers.save(aside)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {size:,} parameters, {_describe(model.config)}")
    if tokenizers is None:
        print("no tokenisers in it: give --source-dict and --codes to translate with it")


def _check_out(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not overwrite:
        raise InputError(f"{out} exists already; choose another --out, or --overwrite it")
    if not (out / "meta.json").is_file() or not (out / "config.json").is_file():
        raise InputError(f"{out} is not a MODEL folder, so it is not overwritten; choose another --out")


def _check_text_options(arguments: argparse.Namespace) -> bool:
    """Whether tokenisers are wanted; refuse before the work when half of what they need is missing."""
    needed = {name: getattr(arguments, name) for name in ("source_dict", "codes", "source_lang", "target_lang")}
    if not any(needed.values()) and arguments.target_dict is None:
        return False
    missing = [f"--{name.replace('_', '-')}" for name, value in needed.items() if not value]
    if missing:
        raise InputError(f"tokenisers also need {', '.join(missing)}")
    for name in ("codes", "pretokenizer"):
        if len(getattr(arguments, name)) > 2:
            raise InputError(f"--{name} takes one value, or one for each side")
    return True


def _tokenizers(arguments: argparse.Namespace, config: "ModelConfig") -> "TokenizerPair":
    from deepnmt.data.tokenizer import TokenizerPair

    source_dict = arguments.source_dict
    source = _tokenizer(arguments, 0, arguments.source_lang, source_dict, config.source_vocab_size)
    target_dict = arguments.target_dict or source_dict
    return TokenizerPair(
        source, _tokenizer(arguments, -1, arguments.target_lang, target_dict, config.target_vocab_size)
    )


def _tokenizer(
    arguments: argparse.Namespace, side: int, language: str, dictionary: Path, vocab_size: int
) -> "Tokenizer":
    """`side`: where a list of one or two values has the one of this side."""
    from deepnmt.data.subword_nmt import Codes, SubwordNmt
    from deepnmt.data.tokenizer import Tokenizer, Writing

    symbols = read_dictionary(dictionary)
    subwords = SubwordNmt(Codes.read(arguments.codes[side]), symbols)
    if len(subwords.pieces) != vocab_size:
        raise InputError(
            f"{dictionary} makes a vocabulary of {len(subwords.pieces):,} ({len(symbols):,} symbols and the special "
            f"ones), but the embedding has {vocab_size:,} rows: it is not this model's dictionary"
        )
    writing = Writing(language, pretokenizer=arguments.pretokenizer[side], lowercase=arguments.lowercase)
    return Tokenizer(subwords, writing)


def read_dictionary(path: Path) -> list[str]:
    """The symbols of a dictionary of fairseq, a line `symbol count` each; ids follow the special ones, as ours."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} is not a dictionary of fairseq: {error}") from error
    symbols: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        symbol, _, count = line.removesuffix(" #fairseq:overwrite").rstrip("\r").rpartition(" ")
        if not symbol or not count.isdecimal():
            raise InputError(f"{path}, line {number}: {line[:80]!r} is not a symbol and its count")
        if symbol in symbols:
            raise InputError(f"{path}, line {number}: {symbol!r} is there already, in line {symbols[symbol]}")
        symbols[symbol] = number
    return list(symbols)


def _describe(config: "ModelConfig") -> str:
    stacks = (("encoder", config.encoder), ("decoder", config.decoder))
    return f"{config.norm}-norm, " + ", ".join(
        f"{name} {stack.num_layers} x {stack.dim} {stack.connection.kind}" for name, stack in stacks
    )
