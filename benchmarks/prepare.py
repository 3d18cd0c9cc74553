"""How fast `deepnmt prepare` is beside the chains people use, on the same lines in one run.

    python benchmarks/prepare.py --source train.en.xz --target train.de.xz --lines 200000 --json prepare.json

Compared: (1) sacremoses, subword-nmt learn-joint-bpe-and-vocab and apply-bpe, as their command lines run with as many
processes (pip install subword-nmt; left out with a notice where it is missing); (2) SentencePiece alone: training with
the same settings, then encoding. Both end with subwords; ours also cleans, reports and stores ids.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece

import deepnmt
from deepnmt.devices import available_cores
from deepnmt.text import iterate_lines

VOCAB_SIZE = 32000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="real text, one sentence a line")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--languages", nargs=2, default=["en", "de"])
    parser.add_argument("--lines", type=int, help="use only this many pairs")
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument(
        "--repeat", type=int, default=1, help="number of runs of ours and of SentencePiece, of which the fastest counts"
    )
    parser.add_argument("--without-chain", action="store_true", help="leave out the subword-nmt chain, which is slow")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        result = compare(arguments, Path(name))
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    paths = (folder / "source", folder / "target")
    pairs, _ = (
        copy_lines(given, path, arguments.lines)
        for given, path in zip((arguments.source, arguments.target), paths, strict=True)
    )
    runs: dict[str, list[Taken]] = {}
    # Alternately, so that other load on the machine meets both.
    for _ in range(arguments.repeat):
        for name, run in (("deepnmt prepare", ours), ("SentencePiece", bare)):
            runs.setdefault(name, []).append(timed(run, paths, arguments, folder))
    if arguments.without_chain:
        pass
    elif find_spec("subword_nmt") is None:
        print("subword-nmt is not installed (pip install subword-nmt): its chain is left out", file=sys.stderr)
    else:
        runs["sacremoses + subword-nmt"] = [timed(chain, paths, arguments, folder)]
    wall = {name: min(taken.wall for taken in listed) for name, listed in runs.items()}
    cpu = {name: min(taken.cpu for taken in listed) for name, listed in runs.items()}
    return {
        "pairs": pairs,
        "vocabulary": VOCAB_SIZE,
        "workers": arguments.workers,
        "machine": f"{platform.machine()}, {available_cores()} cores",
        "seconds": {name: round(taken, 1) for name, taken in wall.items()},
        "cpu_seconds": {name: round(taken, 1) for name, taken in cpu.items()},
        "sentences_per_second": {name: round(2 * pairs / taken) for name, taken in wall.items()},
        "times_as_fast_as": {name: round(wall[name] / wall["deepnmt prepare"], 2) for name in runs},
        "times_less_cpu_than": {name: round(cpu[name] / cpu["deepnmt prepare"], 2) for name in runs},
        "peak_memory_mib": {
            "this process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "largest child": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        },
    }


def copy_lines(given: Path, path: Path, lines: int | None) -> int:
    copied = 0
    with path.open("wb") as file:
        for line in islice(iterate_lines(given), lines):
            file.write(line + b"\n")
            copied += 1
    return copied


@dataclass(frozen=True)
class Taken:
    """Seconds by the clock, and of all processors together: the latter say more on a machine that does other things."""

    wall: float
    cpu: float


def timed(run: Callable[..., None], *arguments: Any) -> Taken:
    started = time.monotonic(), cpu_seconds()
    run(*arguments)
    return Taken(time.monotonic() - started[0], cpu_seconds() - started[1])


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def ours(paths: tuple[Path, Path], arguments: argparse.Namespace, folder: Path) -> None:
    languages = dict(zip(("source_lang", "target_lang"), arguments.languages, strict=True))
    options = {"vocab_size": VOCAB_SIZE, "workers": arguments.workers, "overwrite": True}
    deepnmt.prepare(source=paths[0], target=paths[1], out=folder / "dataset", **languages, **options)


def bare(paths: tuple[Path, Path], arguments: argparse.Namespace, folder: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        input=[str(path) for path in paths],
        model_prefix=str(folder / "bare"),
        model_type="bpe",
        vocab_size=VOCAB_SIZE,
        byte_fallback=True,
        character_coverage=0.9999,
        normalization_rule_name="identity",
        num_threads=arguments.workers,
        max_sentence_length=1 << 20,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "bare.model"))
    for path in paths:
        processor.encode(path.read_text(encoding="utf-8").split("\n")[:-1], num_threads=arguments.workers)


def chain(paths: tuple[Path, Path], arguments: argparse.Namespace, folder: Path) -> None:
    moses = [sys.executable, "-m", "sacremoses", "-j", str(arguments.workers)]
    subword_nmt = [str(Path(sys.executable).parent / "subword-nmt")]
    tokenised = [folder / f"{path.name}.tok" for path in paths]
    for path, out, language in zip(paths, tokenised, arguments.languages, strict=True):
        call([*moses, "-l", language, "tokenize"], path, out)
    codes = folder / "codes"
    vocabularies = [str(folder / f"vocabulary{side}") for side in (1, 2)]
    learn = ["learn-joint-bpe-and-vocab", "--input", *map(str, tokenised), "-s", str(VOCAB_SIZE), "-o", str(codes)]
    learn += ["--write-vocabulary", *vocabularies, "--num-workers", str(arguments.workers)]
    call([*subword_nmt, *learn])
    for path in tokenised:
        apply = ["apply-bpe", "-c", str(codes), "--num-workers", str(arguments.workers)]
        call([*subword_nmt, *apply, "--input", str(path), "--output", f"{path}.bpe"])
    made = [sum(1 for _ in iterate_lines(Path(f"{path}.bpe"))) for path in tokenised]
    if made[0] != made[1] or not made[0]:
        raise SystemExit(f"the chain made {made} lines: it did not run as it should")


def call(command: list[str], source: Path | None = None, target: Path | None = None) -> None:
    with (source or Path("/dev/null")).open("rb") as stdin, (target or Path("/dev/null")).open("wb") as stdout:
        subprocess.run(command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
