"""BPE-dropout at training time: another segmentation of a sentence each time it is seen, reproducibly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from deepnmt.data.collate import Ragged
from deepnmt.data.mixture import random_bits
from deepnmt.data.plan import BatchShape, Lengths
from deepnmt.data.tokenizer import Tokenizer

Row = Sequence[int] | npt.NDArray[np.integer]
Resample = Callable[[list[npt.NDArray[np.integer]], int], Sequence[Row]]
"""The ids of sentences and a seed to the ids of another segmentation of each."""

FITTING_SHARE = 0.9  # padded: buckets have room for this share of the new segmentations


@dataclass(frozen=True)
class DropOut:
    """A tokeniser's BPE-dropout as a `Resample` that can be sent to other processes."""

    tokenizer: Tokenizer
    dropout: float

    def __call__(self, rows: list[npt.NDArray[np.integer]], seed: int) -> list[list[int]]:
        return self.tokenizer.resample_batch([row.tolist() for row in rows], self.dropout, seed)


class Resampler:
    """The seed of a batch's segmentations follows from (seed, epoch, batch), so ranks and resumed runs agree."""

    def __init__(self, functions: tuple[Resample, Resample], seed: int, layout: Literal["padded", "packed"]) -> None:
        self.functions, self.seed, self.layout = functions, seed, layout

    def stretched(self, lengths: Lengths, sample: Ragged, side: int) -> Lengths:
        """The lengths (eos counted) to plan with, by what became of a sample of the sentences.

        A length l becomes g l on average, give or take a multiple of sqrt(l), as each merge is dropped by itself. The
        sentences of a packed batch share its room, so the average will do; one of a padded batch has only its row.
        """
        grown = np.array([len(row) + 1 for row in self._segment(sample, side)])
        usual = sample.lengths + 1
        mean = max(1.0, grown.sum() / usual.sum())
        spread = 0.0
        if self.layout == "padded":
            spread = max(0.0, float(np.quantile((grown - mean * usual) / np.sqrt(usual), FITTING_SHARE)))
        return np.ceil(mean * lengths + spread * np.sqrt(lengths)).astype(np.int32)

    def apply(self, pair: tuple[Ragged, Ragged], shape: BatchShape, epoch: int, batch: int) -> tuple[Ragged, Ragged]:
        """New segmentations of a batch, each only where it fits into the batch's shape."""
        source, target = (
            self._fit(ids, self._segment(ids, side, epoch, batch), (shape.source, shape.target)[side])
            for side, ids in enumerate(pair)
        )
        return source, target

    def _segment(self, ids: Ragged, side: int, *key: int) -> list[Row]:
        seed = int(random_bits(self.seed, "resample", side, *key).random_raw()) >> 33  # fits a C int
        return list(self.functions[side](ids.rows(), seed))

    def _fit(self, usual: Ragged, new: list[Row], room: int) -> Ragged:
        rows = usual.rows()
        if self.layout == "padded":
            return Ragged.of([row if len(row) < room else rows[i] for i, row in enumerate(new)])
        excess = sum(map(len, new)) + len(new) - room
        for i in reversed(range(len(new))):
            if excess <= 0:
                break
            excess -= max(0, len(new[i]) - len(rows[i]))
            new[i] = min(new[i], rows[i], key=len)
        return Ragged.of(new)
