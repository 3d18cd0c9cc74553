"""An experiment of two arms for tests, a small corpus, and `deepnmt` with that experiment known to it."""

import random

import torch

from deepnmt.cli import main
from deepnmt.reproduction.experiment import EXPERIMENTS, Arm, Claim, Experiment

torch.set_num_threads(1)
WORDS = ["the", "a", "cat", "dog", "man", "house", "tree", "sees", "likes", "takes", "red", "green", "big", "and", "or"]

TWO = Experiment(
    title="Two arms",
    about="Pre-norm and DLCL, tiny.",
    measures=("scores", "weights"),
    metric="compound_bleu",
    shows_gradients=True,
    shows_perplexity=True,
    shows_significance=True,
    arms=(
        Arm(label="plain", recipe="en-de-pre-20l", paper={"parameters": 106, "bleu": 28.9}),
        Arm(label="DLCL", recipe="en-de-pre-dlcl-20l", paper={"bleu": 28.8}),
    ),
    claims=(Claim(better="plain", worse="DLCL"), Claim(fails="DLCL")),
)
EXPERIMENTS["two"] = TWO


def write_corpus(folder):
    folder.mkdir(parents=True)
    for name, pairs in (("train", 300), ("valid", 15), ("test", 12)):
        chosen = random.Random(name)
        lines = [[chosen.choice(WORDS) for _ in range(chosen.randint(3, 8))] for _ in range(pairs)]
        (folder / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
        (folder / f"{name}.de").write_text("".join(" ".join(word[::-1] for word in line) + "\n" for line in lines))
    files = []
    for split, name in (("", "train"), ("valid-", "valid"), ("test-", "test")):
        for side, language in (("source", "en"), ("target", "de")):
            files += [f"--{split}{side}", str(folder / f"{name}.{language}")]
    options = ["--source-lang", "en", "--target-lang", "de", "--vocab-size", "340", "--min-frequency", "1"]
    assert main(["prepare", *files, *options, "--workers", "1", "--out", str(folder / "data")]) == 0
    return folder / "data"


def deepnmt(words):
    return main(words)
