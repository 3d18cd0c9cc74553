"""A lexical shortlist on a trained model: BLEU, agreement and speed with and without it, on the test set of a dataset.

    python benchmarks/shortlist.py MODEL DATASET --precisions fp32 int8 --sizes 100/100 20/1000 20/2000 50/2000

MODEL gets no shortlist: those of all sizes are cut from the largest one, in memory. Speed is target subwords per second
of processor time on one core, from text to text, the best of `--rounds` in which all variants take turns.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepnmt.decoding.shortlist import Shortlist
    from deepnmt.decoding.translator import Translator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"])
    parser.add_argument(
        "--sizes", nargs="+", default=["100/100", "20/1000", "20/2000", "50/2000"], help="BEST/FREQUENT"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, help="of the test set (default: all)")
    arguments = parser.parse_args()

    from deepnmt.devices import tune_for_translation

    tune_for_translation()
    import shutil
    import tempfile

    import torch

    from deepnmt.api.shortlist import make_shortlist
    from deepnmt.data.dataset import Dataset
    from deepnmt.decoding.shortlist import Shortlist
    from deepnmt.decoding.translator import Translator

    torch.set_num_threads(1)
    text = Dataset.open(arguments.dataset).test_text
    if text is None:
        raise SystemExit(f"{arguments.dataset} has no test set")
    sources, references = (side[: arguments.lines] for side in text)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(arguments.model, folder, dirs_exist_ok=True)
        sizes = {name: tuple(map(int, name.split("/"))) for name in arguments.sizes}
        best, frequent = (max(column) for column in zip(*sizes.values(), strict=True))
        make_shortlist(folder, arguments.dataset, best=best, frequent=frequent)
        translators = {name: Translator(folder, "cpu", name, shortlist=True) for name in arguments.precisions}
    for precision, translator in translators.items():
        full = translator.shortlist
        assert full is not None
        variants: dict[str, Shortlist | None] = {"none": None} | {
            name: Shortlist(full.translations[:, : best + 1], full.frequent[:frequent])
            for name, (best, frequent) in sizes.items()
        }
        compare(precision, translator, variants, sources, references, arguments.rounds)


def compare(
    precision: str,
    translator: "Translator",
    variants: dict[str, "Shortlist | None"],
    sources: Sequence[str],
    references: Sequence[str],
    rounds: int,
) -> None:
    """Translate with each variant in turn, and print how it compares with none."""
    from deepnmt.evaluation.scores import quick_scores

    seconds: dict[str, float] = {}
    outputs: dict[str, list[str]] = {}
    for _ in range(rounds):
        for name, variant in variants.items():
            translator.shortlist = variant
            started = time.process_time()
            outputs[name] = translator.translate(sources)
            seconds[name] = min(time.process_time() - started, seconds.get(name, float("inf")))
    target = translator.tokenizers[0].target
    for name, output in outputs.items():
        bleu = quick_scores(output, references, target.language)["bleu"].value
        same = sum(a == b for a, b in zip(output, outputs["none"], strict=True)) / len(output)
        speed = sum(map(len, target.encode_batch(output))) / seconds[name]
        print(
            f"{precision:<5} shortlist {name:<9} BLEU {bleu:.2f}   as without {same:6.1%}   {speed:7.0f} subwords/s"
            f"   {seconds['none'] / seconds[name]:.2f} times",
            flush=True,
        )


if __name__ == "__main__":
    main()
