"""Corpora of random ids, and what the updates of a stream hold."""

import itertools
from typing import Any

import numpy as np
import torch
from corpora import corpus_of

from deepnmt.data.batching import BatchStream, Update
from deepnmt.data.collate import AnyBatch, Batch
from deepnmt.data.dataset import Corpus

PAD, EOS = 1, 2


def make_corpus(size: int, longest: int = 20, seed: int = 0) -> Corpus:
    """Pairs of correlated lengths, empty ones included, in which hardly any two sentences are alike."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest, size)
    others = np.clip(lengths + rng.integers(-3, 4, size), 0, longest)
    source, target = ([rng.integers(4, 60_000, n).tolist() for n in side] for side in (lengths, others))
    return corpus_of(source, target)


def epoch_of(stream: BatchStream) -> list[Update]:
    updates = [next(stream)]
    while not updates[-1].is_last_of_epoch:
        updates.append(next(stream))
    return updates


def sentences_of(updates: list[Update]) -> list[int]:
    return [int(i) for update in updates for batch in update.batches for i in batch.sentences]


def rows_of(batch: AnyBatch) -> list[tuple[list[int], list[int], list[int]]]:
    """(source, target input, target output) of each sentence, read back from either layout."""
    if isinstance(batch, Batch):
        tensors = (batch.source, batch.target_input, batch.target_output)
        return [tuple(row[row != PAD].tolist() for row in rows) for rows in zip(*tensors, strict=True)]  # type: ignore[misc]
    source, target = batch.source_offsets.tolist(), batch.target_offsets.tolist()
    return [
        (
            batch.source[source[i] : source[i + 1]].tolist(),
            batch.target_input[target[i] : target[i + 1]].tolist(),
            batch.target_output[target[i] : target[i + 1]].tolist(),
        )
        for i in range(len(batch.sentences))
    ]


def same(one: Update, other: Update) -> bool:
    def tensors(update: Update) -> list[Any]:
        return [value for batch in update.batches for value in vars(batch).values() if isinstance(value, torch.Tensor)]

    counts = [(u.num_target_tokens, u.num_source_tokens, u.epoch, u.index, u.is_last_of_epoch) for u in (one, other)]
    pairs = itertools.zip_longest(tensors(one), tensors(other))
    return counts[0] == counts[1] and all(torch.equal(first, second) for first, second in pairs)
