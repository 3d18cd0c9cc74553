"""`deepnmt average`: several checkpoints of a run become one MODEL."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepnmt.devices import choose_device
from deepnmt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLE = "deepnmt average RUN --last 5 --out MODEL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="what `deepnmt train --out` wrote")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=_count, default=5, metavar="N", help="the last N checkpoints (default 5)")
    which.add_argument("--best", type=_count, metavar="N", help="the N with the best validation scores")
    which.add_argument("--steps", type=int, nargs="+", metavar="STEP", help="those of these steps")
    parser.add_argument(
        "--of", choices=["epochs", "steps"], help="what --last counts (default: epochs, where some ended)"
    )
    parser.add_argument(
        "--best-on-valid", action="store_true", help="of the last 1 to N, average those whose mean has the best BLEU"
    )
    parser.add_argument("--data", type=Path, metavar="DATASET", help="for --best-on-valid (default: the run's own)")
    parser.add_argument("--beam", type=_count, default=4, help="for --best-on-valid (default 4)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="for --best-on-valid")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="the folder to write")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of checkpoints: at least 1")
    return int(text)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.training.averaging import best_window, write_model
    from deepnmt.training.folder import read_about

    read_about(arguments.run)
    if arguments.out.exists():
        raise InputError(f"{arguments.out} exists already; choose another --out")
    paths = _choose(arguments)
    meta = {}
    if arguments.best_on_valid:
        paths, scores = best_window(paths, _judge(arguments, paths))
        for count, score in enumerate(scores, start=1):
            print(f"the last {count}: BLEU {score:.2f}{'  <' if count == len(paths) else ''}", file=sys.stderr)
        meta = {"valid_bleu": scores[len(paths) - 1]}
    write_model(arguments.run, paths, arguments.out, meta)
    names = ", ".join(path.name for path in paths)
    print(f"{arguments.out}: the mean of {names}" if len(paths) > 1 else f"{arguments.out}: {names}", file=sys.stderr)


def _choose(arguments: argparse.Namespace) -> "Sequence[Path]":
    from deepnmt.training.averaging import best_checkpoints, checkpoints_at, last_checkpoints

    if arguments.steps:
        return checkpoints_at(arguments.run, arguments.steps)
    if arguments.best:
        return best_checkpoints(arguments.run, arguments.best)
    return last_checkpoints(arguments.run, arguments.last, arguments.of and arguments.of.removesuffix("s"))


def _judge(arguments: argparse.Namespace, paths: "Sequence[Path]") -> "Callable[[dict[str, Tensor]], float]":
    """BLEU of the validation set, translated by a model with these weights."""
    from deepnmt.data.dataset import Dataset
    from deepnmt.data.tokenizer import TokenizerPair
    from deepnmt.decoding.translator import Translator
    from deepnmt.evaluation.scores import quick_scores
    from deepnmt.training.averaging import build_model
    from deepnmt.training.folder import read_about

    device = choose_device(arguments.device)
    dataset = Dataset.open(arguments.data or Path(read_about(arguments.run)["data"]))
    if dataset.valid_text is None:
        raise InputError(f"{dataset.folder} has no validation set, so --best-on-valid cannot choose")
    sources, references = dataset.valid_text
    tokenizers = TokenizerPair.load(arguments.run)

    def judge(weights: "dict[str, Tensor]") -> float:
        translator = Translator.of(build_model(paths[0], weights).to(device), tokenizers)
        hypotheses = translator.translate(sources, beam=arguments.beam)
        return quick_scores(hypotheses, references, tokenizers.target.writing.language)["bleu"].value

    return judge
