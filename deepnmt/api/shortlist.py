"""`deepnmt.make_shortlist`: learn a lexical shortlist for faster translation on a CPU."""

from pathlib import Path

import numpy as np
import torch

from deepnmt.data.dataset import Dataset
from deepnmt.data.lexicon import learn_lexicon
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding.shortlist import FILE, NONE, Shortlist
from deepnmt.errors import InputError
from deepnmt.model.storage import load_meta


def make_shortlist(
    model: str | Path, data: str | Path, *, best: int = 20, frequent: int = 2000, pairs: int = 200_000
) -> Path:
    """Learn which target symbols translate each source symbol, and write the result into the MODEL folder.

    data: a DATASET with the model's vocabularies. A sentence's shortlist holds the `best` most probable translations of
    each of its symbols, the symbols themselves if the target vocabulary has them, and the `frequent` most frequent
    target symbols. At most `pairs` sentence pairs are used. Returns the path of the file; an existing one is replaced.
    """
    model, data = Path(model), Path(data)
    for name, count in {"best": best, "frequent": frequent, "pairs": pairs}.items():
        if count < 1:
            raise InputError(f"{name} = {count} must be at least 1")
    load_meta(model)
    tokenizers, dataset = TokenizerPair.load(model), Dataset.open(data)
    for side in ("source", "target"):
        if getattr(tokenizers, side).pieces != getattr(dataset.tokenizers, side).pieces:
            raise InputError(f"{data} and {model} have different {side} vocabularies; use the model's training dataset")
    dataset.verify()
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    learned, frequencies = learn_lexicon(dataset.train.values(), sizes, best, pairs)
    target_ids = {piece: number for number, piece in enumerate(tokenizers.target.pieces)}
    itself = np.array([target_ids.get(piece, NONE) for piece in tokenizers.source.pieces])
    translations = torch.from_numpy(np.column_stack([itself, learned])).int()
    most_frequent = np.argsort(-frequencies, kind="stable")[:frequent].copy()
    Shortlist(translations, torch.from_numpy(most_frequent).int()).save(model, tokenizers)
    return model / FILE
