"""BPE-dropout in training: a new, reproducible segmentation each time a sentence is seen."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deepnmt.data.bpe_dropout import Resample, sentence_keys
from deepnmt.data.corpus_mixture import Sentences, random_bits
from deepnmt.data.dataset import Lengths, Side
from deepnmt.data.epoch_plan import EpochPlan

Row = Sequence[int] | npt.NDArray[np.integer]
FITTING_SHARE = 0.9  # padded: buckets have room for this share of the new segmentations


class Resampler:
    """A segmentation depends only on (seed, side, epoch, batch, sentence), so ranks and resumed runs agree."""

    def __init__(self, functions: tuple[Resample, ...], seed: int, is_packed: bool) -> None:
        self.functions, self.seed, self.is_packed = functions, seed, is_packed

    def stretched(self, lengths: Lengths, sample: Side, sentences: Sentences, side: int) -> Lengths:
        """The lengths (eos counted) to plan with, estimated from a sample of the sentences.

        A length l grows to g l on average, with a deviation proportional to sqrt(l), since merges are skipped
        independently. Sentences of a packed batch share its room, so the average suffices; one of a padded batch has
        only its row.
        """
        grown = np.array([len(row) + 1 for row in self._segment(sample, sentences, side)])
        usual = sample.lengths + 1
        mean = max(1.0, grown.sum() / usual.sum())
        spread = 0.0
        if not self.is_packed:
            spread = max(0.0, float(np.quantile((grown - mean * usual) / np.sqrt(usual), FITTING_SHARE)))
        return np.ceil(mean * lengths + spread * np.sqrt(lengths)).astype(np.int32)

    def apply(
        self, pair: tuple[Side, Side], plan: EpochPlan, batch: int, longest: tuple[int, int]
    ) -> tuple[Side, Side]:
        """The new segmentations of a batch that fit its shape and are no longer than `longest`; else the usual ones."""
        shape, sentences = plan.shape(batch), plan.sentences(batch)
        source, target = (
            self._fit(ids, self._segment(ids, sentences, side, plan.epoch, batch), room, longest[side])
            for side, (ids, room) in enumerate(zip(pair, (shape.source, shape.target), strict=True))
        )
        return source, target

    def _segment(self, ids: Side, sentences: Sentences, side: int, *key: int) -> list[Row]:
        common = int(random_bits(self.seed, "resample", side, *key).random_raw())
        rows = [ids[i].tolist() for i in range(len(ids))]
        return list(self.functions[side](rows, sentence_keys(common, sentences)))

    def _fit(self, usual: Side, new: list[Row], room: int, longest: int) -> Side:
        if not self.is_packed:
            return Side.of([row if len(row) < room else usual[i] for i, row in enumerate(new)])
        new = [row if len(row) < longest else usual[i] for i, row in enumerate(new)]
        excess = sum(map(len, new)) + len(new) - room
        for i in reversed(range(len(new))):
            if excess <= 0:
                break
            excess -= max(0, len(new[i]) - len(usual[i]))
            new[i] = min(new[i], usual[i], key=len)
        return Side.of(new)
