"""`deepnmt prepare`: the options of data preparation, and the summary it prints."""

import argparse
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

from deepnmt.columns import aligned
from deepnmt.commands.options import add_options, add_settings
from deepnmt.data.prepare_settings import PrepareSettings
from deepnmt.errors import InputError

EXAMPLE = """deepnmt prepare --source train.en --target train.de \\
      --valid-source dev.en --valid-target dev.de \\
      --source-lang en --target-lang de --out DATASET

  # one pair of files, of which 2,000 pairs become the validation set
  deepnmt prepare --source all.en --target all.de --hold-out 2000 \\
      --source-lang en --target-lang de --out DATASET

  # several corpora, one of them back-translated and tagged
  deepnmt prepare --corpus news news.en.gz news.de.gz \\
      --corpus bt bt.en.zst bt.de.zst --tag 'bt=<bt>' --weight bt=0.5 \\
      --valid-tsv dev.tsv --source-lang en --target-lang de --out DATASET

  # a multilingual model
  deepnmt prepare --direction en de a.en a.de --direction en fr b.en b.fr \\
      --hold-out 1000 --out DATASET"""
PRESETS = {200_000: "demo", 2_000_000: "deep", inf: "en-de-pre-dlcl-30l"}  # for fewer pairs than this
CLEANING = {
    "max_length": "drop longer sentences; 0: no limit",
    "max_ratio": "drop pairs with a larger length ratio; 0: no limit",
    "length_unit": "unit of length for these two",
    "language_check": "drop pairs in the wrong script, or in the wrong language according to py3langid",
    "keep": "reasons for which pairs should not be dropped",
}
SUBWORDS = {
    "vocab_size": "vocabulary size; with --separate, one for both sides or one per side",
    "subwords": "subword algorithm",
    "min_frequency": "remove pieces that occur fewer than N times from the vocabulary",
    "byte_fallback": "encode rare characters as <unk> instead of bytes",
    "character_coverage": "share of the text's characters that the vocabulary covers",
    "tokenizer_lines": "learn subwords from at most N pairs, evenly spaced",
    "tokenizer": "use the tokenisers of a DATASET or MODEL folder, or one or two SentencePiece .model files",
    "codes": "use subword-nmt codes: one file for both sides, or one per side",
    "pretokenizer": "word tokeniser applied before subwords, one for both sides or one per side",
    "lowercase": "lowercase the text",
    "normalization": "Unicode normalisation form",
}
SPLITS = {"": "training", "valid-": "validation", "test-": "test"}
TEXT = {
    "--source-lang CODE": "source language, such as en",
    "--target-lang CODE": "target language, such as de",
    "--out DATASET": "dataset folder to write",
    "--overwrite": "replace an existing dataset",
    "--workers N": "number of processes (default: one per core); does not affect the result",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, TEXT, "--out")
    text = parser.add_argument_group("text (plain or .gz, .xz, .bz2, .zst)")
    for prefix, what in SPLITS.items():
        files = {
            f"--{prefix}source FILE+": f"{what} text, one sentence per line",
            f"--{prefix}target FILE+": f"translation of --{prefix}source, line by line",
            f"--{prefix}tsv FILE+": f"{what} text in two tab-separated columns",
            f"--{prefix}memory FILE+": f"{what} text in TMX or XLIFF",
        }
        add_options(text, files)
        if prefix == "valid-":
            add_settings(text, PrepareSettings, {"hold_out": "take N pairs out of the training text for validation"})
    several: dict[str, Any] = {"action": "append", "default": []}
    names = ("NAME", "SOURCE", "TARGET")
    text.add_argument("--corpus", nargs=3, dest="corpora", metavar=names, help="additional training corpus", **several)
    for name, metavar, content in (
        ("weight", "NAME=W", "weight of a corpus in the training mixture (default: 1)"),
        ("tag", "NAME=TAG", "tag added before every source sentence of a corpus"),
    ):
        text.add_argument(f"--{name}", dest=f"{name}s", metavar=metavar, help=content, **several)
    directions = parser.add_argument_group("text of a multilingual model (instead of all the text above)")
    form = ("SOURCE_LANG", "TARGET_LANG", "SOURCE", "TARGET")
    for prefix, what in SPLITS.items():
        content, dest = f"{what} text in this direction; may be repeated", f"{prefix}directions".replace("-", "_")
        directions.add_argument(f"--{prefix}direction", nargs=4, dest=dest, metavar=form, help=content, **several)
    cleaning = parser.add_argument_group("cleaning (training text only)")
    add_settings(cleaning, PrepareSettings, CLEANING)
    subwords = parser.add_argument_group("words and subwords")
    sharing = subwords.add_mutually_exclusive_group()
    add_options(sharing, {"--joint": "share one vocabulary between the languages (default)"})
    parser.set_defaults(joint=PrepareSettings.joint)
    content = "use one vocabulary per language"
    sharing.add_argument("--separate", action="store_false", dest="joint", help=content)
    add_settings(subwords, PrepareSettings, SUBWORDS)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.prepare import prepare

    corpora = {name: (source, target) for name, source, target in arguments.corpora}
    if len(corpora) < len(arguments.corpora):
        raise InputError("two corpora have the same name (--corpus NAME SOURCE TARGET)")
    arguments.corpora = corpora
    arguments.tags = _named("--tag", arguments.tags, str)
    arguments.weights = _named("--weight", arguments.weights, float)
    for prefix in SPLITS:
        name = f"{prefix}directions".replace("-", "_")
        setattr(arguments, name, _by_direction(getattr(arguments, name)))
    show_summary(prepare(**vars(arguments)).meta, arguments.out)


def _by_direction(entries: list[list[str]]) -> dict[tuple[str, str], tuple[list[str], list[str]]]:
    """The source and target files of each direction."""
    found: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for source_lang, target_lang, source, target in entries:
        sources, targets = found.setdefault((source_lang, target_lang), ([], []))
        sources.append(source)
        targets.append(target)
    return found


def _named(option: str, entries: list[str], kind: Callable[[str], Any]) -> dict[str, Any]:
    named = {}
    for name, separator, text in (entry.partition("=") for entry in entries):
        if not separator:
            raise InputError(f"{option} {name!r} must be NAME=VALUE, where NAME is a corpus")
        try:
            named[name] = kind(text)
        except ValueError as error:
            raise InputError(f"{option} {name}={text}: {text!r} is not a number") from error
    return named


def show_summary(meta: dict[str, Any], out: Path) -> None:
    """Print the pairs kept and dropped, warnings about the held-out sets, and the next command."""
    print(f"{', '.join(map(' to '.join, meta['directions']))}:")
    rows = [["corpus", "pairs read", "kept", "source tokens", "target tokens"]]
    for corpus in [*meta["train"], *({"name": split, **meta[split]} for split in ("valid", "test") if meta[split])]:
        read = corpus.get("pairs_read", corpus["pairs"])
        counts = (read, corpus["pairs"], corpus["source_tokens"], corpus["target_tokens"])
        rows.append([corpus["name"], *(f"{count:,}" for count in counts)])
    print(aligned(rows))
    rows = [["corpus", "reason", "pairs", "share"]]
    for corpus in meta["train"]:
        for reason, entry in meta["cleaning"][corpus["name"]].items():
            share = f"{100 * entry['count'] / corpus['pairs_read']:.2f} %"
            rows.append([corpus["name"], f"{reason}: {entry['meaning']}", f"{entry['count']:,}", share])
    if len(rows) > 1:
        print(f"\ndropped from training (examples in {out / 'dataset.json'}):\n{aligned(rows, slice(2, None))}\n")
    else:
        print("No pair was dropped.\n")
    for split in ("valid", "test"):
        for reason in (meta[split] or {}).get("noted", {}).values():
            pairs = "1 unusual pair" if reason["count"] == 1 else f"{reason['count']:,} unusual pairs"
            print(f"{split}: {pairs} kept: {reason['meaning']}")
    for line in _advice(meta):
        print(line)
    sizes = f"{meta['source_vocab_size']:,} symbols"
    if not meta["shared_vocabulary"]:
        sizes = f"{sizes} (source) and {meta['target_vocab_size']:,} (target)"
    pairs, seconds = sum(corpus["pairs_read"] for corpus in meta["train"]), max(meta["seconds"], 0.1)
    print(f"{'Shared vocabulary' if meta['shared_vocabulary'] else 'Vocabularies'}: {sizes}. ", end="")
    print(f"{pairs:,} pairs in {seconds:,.1f} s, {2 * pairs / seconds:,.0f} sentences/s.")
    recipe = next(name for most, name in PRESETS.items() if pairs < most)
    recipe += "" if meta["shared_vocabulary"] else " model.share_embeddings=false"
    print(f"Next: deepnmt train {recipe} --data {out} --out RUN     (`deepnmt presets` lists others)")


def _advice(meta: dict[str, Any]) -> Iterator[str]:
    """What to change in a dataset that trains badly."""
    for corpus in meta["train"]:
        invalid = meta["cleaning"][corpus["name"]].get("utf8", {"count": 0})["count"]
        if invalid > corpus["pairs_read"] / 100:
            remedy = "if a file is Latin-1, convert it with `iconv -f LATIN1 -t UTF-8`"
            yield f"{corpus['name']}: many pairs are not valid UTF-8; {remedy}."
    asked, found = meta["settings"]["vocab_size"], (meta["source_vocab_size"], meta["target_vocab_size"])
    is_learned = not (meta["tokenizer"]["given"] or meta["settings"]["codes"])
    if is_learned and meta["settings"]["min_frequency"] > 1 and min(found) < 0.5 * min(asked):
        # Whole words take the occurrences of their parts, which then are too rare to stay.
        fitting = " ".join(str(round(size, -2) or size) for size in dict.fromkeys(found))
        yield f"The text is small for this --vocab-size, so rare words are split finely; try --vocab-size {fitting}."
    if meta["valid"] is None:
        remedy = "--hold-out N takes N pairs of the training text for it"
        yield f"There is no validation set, so training cannot choose the best checkpoint; {remedy}."
