"""How much memory `deepnmt prepare` takes on many pairs: a corpus repeated, every copy made new by a number at its end.

    python benchmarks/prepare_memory.py --source train.en.xz --target train.de.xz --pairs 10000000 --json memory.json

What is counted is the proportional set size (what is shared by processes counts once) of all its processes together,
looked at twice a second. Linux only.
"""

import argparse
import json
import lzma
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = 977  # different numbers in a copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, metavar="FILE.xz")
    parser.add_argument("--target", type=Path, required=True, metavar="FILE.xz")
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--folder", type=Path, help="for the text and the dataset, some GB (default: temporary)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = measure(Path(folder), arguments)
    print(json.dumps(found, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    for side, path in (("en", arguments.source), ("de", arguments.target)):
        repeat(path, folder / f"train.{side}", arguments.pairs)
    command = [sys.executable, "-m", "deepnmt", "prepare", "--source", str(folder / "train.en"), "--target"]
    command += [str(folder / "train.de"), "--source-lang", "en", "--target-lang", "de", "--joint"]
    command += ["--vocab-size", str(arguments.vocab_size), "--out", str(folder / "dataset")]
    started, peak = time.monotonic(), 0
    process = subprocess.Popen(command)
    while process.poll() is None:
        peak = max(peak, sum(proportional_kib(pid) for pid in family(process.pid)))
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with status {process.returncode}")
    about = json.loads((folder / "dataset" / "dataset.json").read_text(encoding="utf-8"))["train"][0]
    return {
        "pairs": about["pairs_read"],
        "kept": about["pairs"],
        "peak_memory_mib": round(peak / 1024),
        "text_mib": sum((folder / f"train.{side}").stat().st_size for side in ("en", "de")) >> 20,
        "seconds": round(time.monotonic() - started, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": shlex.join(["python", "benchmarks/prepare_memory.py", *sys.argv[1:]]),
    }


def repeat(path: Path, out: Path, count: int) -> None:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")[:-1]
    with out.open("w", encoding="utf-8", newline="\n") as file:
        for number in range(count):
            copy, place = divmod(number, len(lines))
            file.write(f"{lines[place]} {copy * WORDS + place % WORDS}\n")


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += [int(word) for word in path.read_text().split()]
        except OSError:  # it has just ended
            continue
    return [pid, *(below for child in children for below in family(child))]


def proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()
