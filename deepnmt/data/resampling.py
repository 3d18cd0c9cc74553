"""BPE-dropout at training time: another segmentation of a sentence each time it is seen, reproducibly."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from deepnmt.data.collate import Ragged
from deepnmt.data.mixture import random_bits
from deepnmt.data.plan import BatchShape

Resample = Callable[[npt.NDArray[np.integer], int], Sequence[int]]
"""A sentence's ids and a seed to the ids of another segmentation of the same text."""

FITTING_SHARE = 0.9  # padded: buckets have room for this share of the new segmentations
Row = Sequence[int] | npt.NDArray[np.integer]


class Resampler:
    """The seed of a segmentation follows from (seed, epoch, batch, row), so ranks and resumed runs agree."""

    def __init__(self, functions: tuple[Resample, Resample], seed: int, layout: Literal["padded", "packed"]) -> None:
        self.functions, self.seed, self.layout = functions, seed, layout

    def growth(self, sample: Ragged, side: int) -> float:
        """By how much to stretch lengths when planning: the average when packed, what most need when padded."""
        seeds = random_bits(self.seed, "resample").random_raw(len(sample))
        grown = np.array([len(row) + 1 for row in self._segment(sample, side, seeds)])
        usual = sample.lengths + 1
        growth = grown.sum() / usual.sum() if self.layout == "packed" else np.quantile(grown / usual, FITTING_SHARE)
        return max(1.0, float(growth))

    def apply(self, pair: tuple[Ragged, Ragged], shape: BatchShape, epoch: int, batch: int) -> tuple[Ragged, Ragged]:
        """New segmentations of a batch, each only where it fits into the batch's shape."""
        seeds = random_bits(self.seed, "resample", epoch, batch).random_raw(2 * len(pair[0])).reshape(2, -1)
        source, target = (
            self._fit(ids, self._segment(ids, side, seeds[side]), (shape.source, shape.target)[side])
            for side, ids in enumerate(pair)
        )
        return source, target

    def _segment(self, ids: Ragged, side: int, seeds: npt.NDArray[np.uint64]) -> list[Row]:
        function = self.functions[side]
        small = (seeds >> np.uint64(33)).tolist()  # fits a C int
        return [function(row, seed) if len(row) else row for row, seed in zip(ids.rows(), small, strict=True)]

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
