"""What a glossary costs: the time of a translation with terms over that without, on one core of a CPU.

    python benchmarks/terms.py MODEL SOURCE --shares 0 0.1 0.5 1

For each share, the glossary has as many frequent words of SOURCE as it takes until that share of the lines has a term;
each must be translated as `--rendering` and a number, which the model would not say. All variants take turns; the best
time counts.
"""

import argparse
import re
import time
from collections import Counter
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1, 0.5, 1.0])
    parser.add_argument("--rendering", default="Leuchte")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    from deepnmt.devices import tune_for_translation

    tune_for_translation()
    import torch

    from deepnmt.decoding.translator import Translator

    torch.set_num_threads(1)
    texts = arguments.source.read_text(encoding="utf-8").splitlines()
    translator = Translator(arguments.model, "cpu", arguments.precision)
    variants = {share: glossary(texts, share, arguments.rendering) for share in arguments.shares}
    best: dict[float | None, float] = {}
    for _ in range(arguments.rounds):
        for share, terms in {None: None, **variants}.items():
            start = time.process_time()
            translator.translate(texts, terms=terms)
            taken = time.process_time() - start
            best[share] = min(best.get(share, taken), taken)
    for share, terms in variants.items():
        counts = [len(found) for found in map(translator.glossary(terms).in_text, texts) if found]
        lines, mean = f"{len(counts) / len(texts):4.0%} of {len(texts):,} lines", sum(counts) / max(len(counts), 1)
        print(f"{lines} have {mean:.1f} terms: {best[share] / best[None]:.2f}", flush=True)


def glossary(texts: list[str], share: float, rendering: str) -> dict[str, str]:
    words = [{*re.findall(r"[^\W\d_]+", text.lower())} for text in texts]
    chosen: set[str] = set()
    for word, _ in Counter(word for of_line in words for word in of_line).most_common():
        missing = share * len(texts) - sum(bool(chosen & of_line) for of_line in words)
        if missing <= 0:
            break
        if sum(word in of_line and not chosen & of_line for of_line in words) <= missing:
            chosen.add(word)
    return {word: f"{rendering} {number}" for number, word in enumerate(sorted(chosen))} or {"\N{FISHEYE}": rendering}


if __name__ == "__main__":
    main()
