"""`deepnmt backtranslate`: monolingual target text and a reverse model to parallel text for training."""

import argparse
import fcntl
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from deepnmt.commands.options import add_translation_options, settings_of
from deepnmt.commands.translate import chunk_lines, load_translator
from deepnmt.decoding.lines import LineWarnings, decoded, one_line
from deepnmt.devices import limit_shape_caches
from deepnmt.errors import InputError
from deepnmt.progress import say

if TYPE_CHECKING:
    from deepnmt.decoding.translator import Translator

EXAMPLE = """deepnmt backtranslate DE-EN-MODEL mono.de --out bt/news
  writes bt/news.en (synthetic) and bt/news.de (from mono.de), for
  deepnmt prepare --corpus bt bt/news.en bt/news.de --tag 'bt=<bt>' ...

  On 8 GPUs (each translates every eighth chunk of lines; the last to finish puts all together; run it again after an
  interruption and it goes on):
  torchrun --nproc-per-node 8 --no-python deepnmt backtranslate DE-EN-MODEL mono.de --out bt/news --precision bf16"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs=1, type=Path, metavar="MODEL", help="translates from the language of the text")
    parser.add_argument("text", type=Path, metavar="MONO", help="one sentence a line; .gz, .xz, .bz2, .zst unpacked")
    parser.add_argument("--out", type=Path, required=True, metavar="PREFIX", help="writes PREFIX.en and PREFIX.de")
    add_translation_options(parser, "sampling")
    parser.add_argument("--chunk", type=int, metavar="N", help="lines sorted by length and translated together")


def run(arguments: argparse.Namespace) -> None:
    limit_shape_caches()
    from deepnmt.decoding.jobs import ResumableFile, file_chunks, fingerprint, short_digest
    from deepnmt.progress import progress

    if not arguments.text.is_file():
        raise InputError(f"{arguments.text} does not exist")
    if next(file_chunks(arguments.text, 1), None) is None:
        raise InputError(f"{arguments.text} is empty")
    settings = settings_of(arguments)
    # Sampling trains better models than beam search (https://arxiv.org/abs/1808.09381): the beam has to be asked for.
    settings["sampling"] = "beam" not in settings
    rank, world_size, device = _place(arguments)
    translator = load_translator(arguments, device)
    size = chunk_lines(arguments, translator)
    finals = _finals(arguments.out, translator)
    for final in finals:
        if final.is_dir():
            raise InputError(f"{final} is a folder; choose another --out")
        if final.exists() and final.samefile(arguments.text):
            raise InputError(f"--out {arguments.out} would overwrite {arguments.text}; choose another name")
    # Chunks and draws do not depend on the number of ranks, so neither does the result.
    job = fingerprint(arguments.model, arguments.text, {**settings, "precision": arguments.precision, "chunk": size})
    shards = [
        arguments.out.with_name(f"{arguments.out.name}.shard-{i}-of-{world_size}.{short_digest(job)}")
        for i in range(world_size)
    ]
    if not shards[rank].exists():
        shard = ResumableFile(shards[rank], job)
        if shard.lines:
            say(f"going on after {shard.lines:,} lines of this part")
        warnings = LineWarnings(str(arguments.text))
        try:
            with progress("backtranslate", unit="lines") as shown:
                skip = shard.lines
                for first, chunk in _own_chunks(file_chunks(arguments.text, size), rank, world_size):
                    if skip > 0:
                        skip -= len(chunk)
                        continue
                    warn = warnings.after(first)
                    texts = decoded(chunk, warn)
                    translations = translator.translate(texts, warn=warn, done=shown.advance, **settings)
                    shard.append("".join(f"{one_line(text)}\n" for text in translations).encode(), len(chunk))
        except BaseException:
            shard.close()
            raise
        warnings.summarise()
        shard.finish()
    _merge_if_last(arguments.text, shards, finals, size)


def _place(arguments: argparse.Namespace) -> tuple[int, int, str | None]:
    """Rank, number of ranks and device, from what torchrun sets."""
    try:
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise InputError(f"RANK and WORLD_SIZE in the environment must be whole numbers: {error}") from error
    if not 0 <= rank < world_size:
        raise InputError(f"RANK = {rank} is not below WORLD_SIZE = {world_size}")
    if world_size == 1 or arguments.device == "cpu":
        return rank, world_size, arguments.device
    import torch

    local = int(os.environ.get("LOCAL_RANK", str(rank)))
    return rank, world_size, f"cuda:{local % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"


def _finals(out: Path, translator: "Translator") -> tuple[Path, Path]:
    """The files of the synthetic and of the given side, named by their languages."""
    pair = translator.tokenizers[0]
    synthetic, given = pair.target.writing.language, pair.source.writing.language
    if synthetic == given:
        synthetic, given = "source", "target"
    return out.with_name(f"{out.name}.{synthetic}"), out.with_name(f"{out.name}.{given}")


def _own_chunks(chunks: Iterator[list[bytes]], rank: int, world_size: int) -> Iterator[tuple[int, list[bytes]]]:
    """Every world_size-th chunk, and the number of lines before it."""
    first = 0
    for number, chunk in enumerate(chunks):
        if number % world_size == rank:
            yield first, chunk
        first += len(chunk)


def _merge_if_last(text: Path, shards: list[Path], finals: tuple[Path, Path], size: int) -> None:
    """Merge the shards once all are there. The ranks look one after the other, so the last to finish sees all."""
    lock = finals[0].with_name(f".{finals[0].name}.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        missing = sum(not shard.exists() for shard in shards)
        if missing == len(shards):  # another rank has merged them
            lock.unlink(missing_ok=True)
            return
        if missing:
            say(f"this part is done; {missing} of {len(shards)} are not finished yet")
            return
        pairs, dropped = _merge(text, shards, finals, size)
        for shard in shards:
            shard.unlink()
        lock.unlink(missing_ok=True)
    note = f" ({dropped:,} empty lines left out)" if dropped else ""
    say(f"{pairs:,} pairs in {finals[0]} (synthetic) and {finals[1]}{note}")


def _merge(text: Path, shards: list[Path], finals: tuple[Path, Path], size: int) -> tuple[int, int]:
    """Pair the text with its translations, chunk by chunk; lines without one are left out."""
    from contextlib import ExitStack

    from deepnmt.decoding.jobs import file_chunks
    from deepnmt.files import replacing

    pairs = dropped = 0
    with ExitStack() as stack:
        parts = [stack.enter_context(shard.open("rb")) for shard in shards]
        asides = [stack.enter_context(replacing(final)) for final in finals]
        with asides[0].open("wb") as synthetic, asides[1].open("wb") as given:
            for number, chunk in enumerate(file_chunks(text, size)):
                translations = islice(parts[number % len(parts)], len(chunk))
                for line, translation in zip(chunk, translations, strict=True):
                    if not line.strip() or not translation.strip():
                        dropped += 1
                        continue
                    pairs += 1
                    synthetic.write(translation)
                    given.write(one_line(line.decode(errors="replace")).encode() + b"\n")
    return pairs, dropped
