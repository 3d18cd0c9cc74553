"""`deepnmt prepare`: the options of data preparation, and the summary at its end."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepnmt.errors import InputError

if TYPE_CHECKING:
    from deepnmt.data.prepare import CorpusInput
    from deepnmt.data.text import ParallelFile

EXAMPLE = """deepnmt prepare --source train.en --target train.de --valid-source dev.en --valid-target dev.de \\
                  --source-lang en --target-lang de --out DATASET

  Files may be plain text or .gz, .xz, .bz2, .zst. Several corpora, one of them back-translated and tagged:
  deepnmt prepare --corpus news news.en.gz news.de.gz --corpus bt bt.en.zst bt.de.zst --tag 'bt=<bt>' --weight bt=0.5 \\
                  --valid-tsv dev.tsv --source-lang en --target-lang de --out DATASET"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # The defaults of what makes a dataset are those of PrepareSettings: an option that is not given is not passed on.
    text = parser.add_argument_group("text")
    text.add_argument("--source", nargs="+", type=Path, metavar="FILE", help="training text, one sentence a line")
    text.add_argument("--target", nargs="+", type=Path, metavar="FILE", help="its translation, line by line")
    text.add_argument("--tsv", nargs="+", type=Path, metavar="FILE", help="training text as source, tab, target")
    text.add_argument(
        "--corpus", nargs=3, action="append", default=[], metavar=("NAME", "SOURCE", "TARGET"), help="a further corpus"
    )
    text.add_argument("--weight", action="append", default=[], metavar="NAME=W", help="its weight in the mixture (1)")
    text.add_argument("--tag", action="append", default=[], metavar="NAME=TAG", help="a tag before each of its sources")
    for split in ("valid", "test"):
        text.add_argument(f"--{split}-source", nargs="+", type=Path, metavar="FILE")
        text.add_argument(f"--{split}-target", nargs="+", type=Path, metavar="FILE")
        text.add_argument(f"--{split}-tsv", nargs="+", type=Path, metavar="FILE")
    text.add_argument("--source-lang", required=True, metavar="CODE", help="language code, such as en")
    text.add_argument("--target-lang", required=True, metavar="CODE")
    text.add_argument("--out", required=True, type=Path, metavar="DATASET", help="the folder to make")
    text.add_argument("--overwrite", action="store_true", help="replace an existing dataset")
    text.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes (all cores); never changes the result"
    )
    _add_cleaning(parser.add_argument_group("cleaning of the training text (valid and test are never touched)"))
    _add_subwords(parser.add_argument_group("words and subwords"))


def _add_cleaning(group: Any) -> None:
    unset = argparse.SUPPRESS
    group.add_argument(
        "--max-length", type=int, default=unset, metavar="N", help="longest side kept (100; 0: no limit)"
    )
    group.add_argument(
        "--max-ratio", type=float, default=unset, metavar="R", help="longer to shorter side (3; 0: no limit)"
    )
    group.add_argument("--length-unit", choices=["subwords", "words"], default=unset, help="what both count (subwords)")
    group.add_argument(
        "--language-check",
        default=unset,
        metavar="none|script|langid",
        help="drop pairs in the wrong script, or in the wrong language as guessed by py3langid (none)",
    )
    group.add_argument(
        "--keep",
        nargs="+",
        default=unset,
        metavar="REASON",
        help="do not drop for this reason: control identical script language too-long ratio overlap duplicate",
    )


def _add_subwords(group: Any) -> None:
    unset = argparse.SUPPRESS
    group.add_argument(
        "--vocab-size",
        nargs="+",
        type=int,
        default=unset,
        metavar="N",
        help="(32000); with --separate also two numbers",
    )
    sharing = group.add_mutually_exclusive_group()
    sharing.add_argument("--joint", action="store_true", dest="joint", default=unset, help="one vocabulary (default)")
    sharing.add_argument("--separate", action="store_false", dest="joint", default=unset, help="one per language")
    group.add_argument("--subwords", choices=["bpe", "unigram"], default=unset, help="(bpe)")
    group.add_argument(
        "--min-frequency", type=int, default=unset, metavar="N", help="pieces rarer than this are split further (5)"
    )
    group.add_argument(
        "--no-byte-fallback",
        action="store_false",
        dest="byte_fallback",
        default=unset,
        help="rare characters are <unk>",
    )
    group.add_argument("--character-coverage", type=float, default=unset, metavar="P", help="(0.9999)")
    group.add_argument(
        "--tokenizer-lines",
        type=int,
        default=unset,
        metavar="N",
        help="learn from at most N pairs, evenly taken (1000000)",
    )
    group.add_argument(
        "--tokenizer",
        nargs="+",
        type=Path,
        default=unset,
        metavar="PATH",
        help="take the tokenisers of a DATASET or MODEL folder, or one or two SentencePiece .model files",
    )
    group.add_argument("--source-codes", type=Path, metavar="FILE", help="take merge operations of subword-nmt")
    group.add_argument("--target-codes", type=Path, metavar="FILE")
    group.add_argument(
        "--pretokenizer",
        nargs="+",
        default=unset,
        metavar="none|moses|jieba",
        help="words before subwords; one for both sides, or source and target (none)",
    )
    group.add_argument("--lowercase", action="store_true", default=unset)
    group.add_argument("--normalization", default=unset, metavar="nfc|nfkc|none", help="Unicode normal form (nfc)")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.data.prepare import PrepareSettings, prepare

    if arguments.workers < 0:
        raise InputError(f"--workers is {arguments.workers}; it must be at least 1")
    given = vars(arguments)
    plain = (
        "max_length max_ratio length_unit language_check joint subwords min_frequency byte_fallback character_coverage"
        " tokenizer_lines lowercase normalization"
    )
    values = {name: given[name] for name in plain.split() if name in given}
    values |= {name: tuple(given[name]) for name in ("keep", "tokenizer") if name in given}
    if "vocab_size" in given:
        values["vocab_sizes"] = _two("--vocab-size", given["vocab_size"])
    if "pretokenizer" in given:
        values["pretokenizers"] = _two("--pretokenizer", given["pretokenizer"])
    if len(values.get("tokenizer", ())) > 2:
        raise InputError("--tokenizer takes one or two paths")
    if (arguments.source_codes is None) != (arguments.target_codes is None):
        raise InputError("--source-codes and --target-codes go together (they may be the same file)")
    if arguments.source_codes is not None:
        values["codes"] = (arguments.source_codes, arguments.target_codes)
    settings = PrepareSettings(source_lang=arguments.source_lang, target_lang=arguments.target_lang, **values)
    meta = prepare(
        _corpora(arguments),
        settings,
        arguments.out,
        valid=_files(arguments, "valid"),
        test=_files(arguments, "test"),
        num_workers=arguments.workers,
        overwrite=arguments.overwrite,
    )
    show_summary(meta, arguments.out)


def _two(option: str, values: list[Any]) -> tuple[Any, Any]:
    if len(values) > 2:
        raise InputError(f"{option} takes one value, or two for source and target")
    return values[0], values[-1]


def _corpora(arguments: argparse.Namespace) -> "list[CorpusInput]":
    from deepnmt.data.prepare import CorpusInput
    from deepnmt.data.text import ParallelFile

    files = {"train": _files(arguments, "")}
    for name, source, target in arguments.corpus:
        if files.get(name):
            raise InputError(f"two corpora are called {name!r}")
        files[name] = (ParallelFile(Path(source), Path(target)),)
    files = {name: listed for name, listed in files.items() if listed}
    weights, tags = _named("--weight", arguments.weight, files), _named("--tag", arguments.tag, files)
    return [
        CorpusInput(name=name, files=listed, weight=_number(name, weights.get(name, "1")), tag=tags.get(name))
        for name, listed in files.items()
    ]


def _files(arguments: argparse.Namespace, split: str) -> "tuple[ParallelFile, ...]":
    from deepnmt.data.text import ParallelFile

    prefix, given = (f"{split}_", vars(arguments)) if split else ("", vars(arguments))
    option = f"--{split}-" if split else "--"
    source, target = given[f"{prefix}source"] or [], given[f"{prefix}target"] or []
    if len(source) != len(target):
        raise InputError(f"{option}source has {len(source)} files and {option}target {len(target)}; they go in pairs")
    pairs = [ParallelFile(*pair) for pair in zip(source, target, strict=True)]
    return (*pairs, *(ParallelFile(path) for path in given[f"{prefix}tsv"] or []))


def _named(option: str, entries: list[str], known: dict[str, Any]) -> dict[str, str]:
    named = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator or name not in known:
            raise InputError(
                f"{option} {entry!r}: write NAME=VALUE with one of the corpora {', '.join(known) or '(none)'}"
            )
        named[name] = value
    return named


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"--weight {name}={text}: {text!r} is not a number") from error


def show_summary(meta: dict[str, Any], out: Path) -> None:
    """The tables of what was kept and dropped, the warnings about valid and test, and what to do next."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(_corpora_table(meta))
    dropped = _dropped_table(meta)
    console.print(dropped if dropped.row_count else "No pair was dropped.")
    for split in ("valid", "test"):
        for reason in (meta[split] or {}).get("noted", {}).values():
            kept = "1 pair" if reason["count"] == 1 else f"{reason['count']:,} pairs"
            console.print(f"{split}: {kept} kept although {reason['meaning']}", style="yellow")
    if meta["valid"] is None:
        console.print("There is no validation set: training cannot pick its best checkpoint.", style="yellow")
    sizes = f"{meta['source_vocab_size']:,} symbols"
    if not meta["shared_vocabulary"]:
        sizes = f"{sizes} (source) and {meta['target_vocab_size']:,} (target)"
    pairs = sum(corpus["pairs_read"] for corpus in meta["train"])
    seconds = max(meta["seconds"], 0.1)
    console.print(
        f"{'Shared vocabulary' if meta['shared_vocabulary'] else 'Vocabularies'}: {sizes}. "
        f"{pairs:,} pairs in {seconds:,.1f} s, {2 * pairs / seconds:,.0f} sentences/s."
    )
    console.print(f"Examples of what was dropped: {out / 'dataset.json'}", markup=False)
    console.print(f"Next: deepnmt train RECIPE.toml --data {out} --out RUN", markup=False)


def _corpora_table(meta: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{meta['source_lang']} to {meta['target_lang']}", title_justify="left")
    for column in ("corpus", "pairs read", "kept", "source tokens", "target tokens"):
        table.add_column(column, justify="left" if column == "corpus" else "right")
    rows = [*meta["train"], *({"name": split, **meta[split]} for split in ("valid", "test") if meta[split])]
    for row in rows:
        read = row.get("pairs_read", row["pairs"])
        table.add_row(
            row["name"], *(f"{n:,}" for n in (read, row["pairs"], row["source_tokens"], row["target_tokens"]))
        )
    return table


def _dropped_table(meta: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="dropped from training", title_justify="left")
    table.add_column("corpus")
    table.add_column("reason")
    table.add_column("pairs", justify="right")
    table.add_column("share", justify="right")
    read = {corpus["name"]: corpus["pairs_read"] for corpus in meta["train"]}
    for name, reasons in meta["cleaning"].items():
        for reason, entry in reasons.items():
            share = 100 * entry["count"] / read[name]
            table.add_row(escape(name), f"{reason}: {entry['meaning']}", f"{entry['count']:,}", f"{share:.2f} %")
    return table
