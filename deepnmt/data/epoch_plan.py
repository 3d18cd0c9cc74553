"""The plan of an epoch for both layouts: the sentences of each batch and the order of the batches."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepnmt.data.buckets import Buckets
from deepnmt.data.corpus_mixture import Sentences, random_bits, shuffled
from deepnmt.data.dataset import Lengths

PACKED_MULTIPLE = 128  # sizes of packed batches are multiples of a tile of the matrix units
SPARE_DEVIATIONS = 6  # slots of a packed batch beyond the expected number of sentences


@dataclass(frozen=True)
class BatchShape:
    """Rows (slots when packed) and tokens per side: per row when padded, in total when packed."""

    rows: int
    source: int
    target: int


@dataclass(frozen=True)
class EpochPlan:
    """Batch k of the epoch holds sentences order[starts[k]:stops[k]], in the shape shapes[shape_of[k]]."""

    epoch: int
    order: Sentences
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    shape_of: npt.NDArray[np.int64]
    shapes: list[BatchShape]

    def __len__(self) -> int:
        return len(self.starts)

    def sentences(self, batch: int) -> Sentences:
        return self.order[self.starts[batch] : self.stops[batch]]

    def shape(self, batch: int) -> BatchShape:
        return self.shapes[self.shape_of[batch]]


class PaddedPlanner:
    """Groups sentences of similar length: random order within each bucket, full batches, then shuffled batches.

    Only the last batch of the longest bucket can have fewer rows than its bucket.
    """

    def __init__(self, source: Lengths, target: Lengths, buckets: Buckets) -> None:
        self.buckets = buckets
        self.bucket_of = buckets.assign(source, target)
        sizes = zip(buckets.rows.tolist(), buckets.sources.tolist(), buckets.targets.tolist(), strict=True)
        self.shapes = [BatchShape(*size) for size in sizes]

    def plan(self, drawn: Sentences, seed: int, epoch: int) -> EpochPlan:
        held, counts = self._by_bucket(drawn, seed, epoch)
        pending: list[list[Sentences]] = [[part] for part in np.split(held, np.cumsum(counts)[:-1])]
        order: list[Sentences] = []
        sizes: list[int] = []
        shape_of: list[int] = []
        for bucket, shape in enumerate(self.shapes):
            waiting = np.concatenate(pending[bucket])
            batches, left = divmod(len(waiting), shape.rows)
            onward = self.buckets.overflow[bucket]
            if onward >= 0:
                pending[onward].insert(0, waiting[len(waiting) - left :])
                waiting = waiting[: len(waiting) - left]
            sizes += [shape.rows] * batches + ([left] if left and onward < 0 else [])
            shape_of += [bucket] * (len(sizes) - len(shape_of))
            order.append(waiting)
        stops = np.cumsum(np.array(sizes, np.int64))
        sequence = shuffled(len(sizes), random_bits(seed, "batches", epoch))
        starts, stops = (stops - sizes)[sequence], stops[sequence]
        return EpochPlan(epoch, np.concatenate(order), starts, stops, np.array(shape_of)[sequence], self.shapes)

    def _by_bucket(self, drawn: Sentences, seed: int, epoch: int) -> tuple[Sentences, npt.NDArray[np.int64]]:
        buckets = self.bucket_of[drawn]
        keys = random_bits(seed, "order", epoch).random_raw(len(drawn))
        keys >>= np.uint64(16)
        keys |= buckets.astype(np.uint64) << np.uint64(48)
        return drawn[np.argsort(keys, kind="stable")], np.bincount(buckets, minlength=len(self.shapes))


class PackedPlanner:
    """Packs sentences in random order until the next one does not fit on one side, or no slot is left."""

    def __init__(self, source: Lengths, target: Lengths, shape: BatchShape) -> None:
        self.source, self.target = source, target
        self.shapes = [shape]

    def plan(self, drawn: Sentences, seed: int, epoch: int) -> EpochPlan:
        (shape,) = self.shapes
        order = drawn[shuffled(len(drawn), random_bits(seed, "order", epoch))]
        source, target = (np.cumsum(lengths[order], dtype=np.int64) for lengths in (self.source, self.target))
        stops, start, source_used, target_used = [], 0, 0, 0
        while start < len(order):
            start = min(
                int(source.searchsorted(source_used + shape.source, "right")),
                int(target.searchsorted(target_used + shape.target, "right")),
                start + shape.rows,
            )
            stops.append(start)
            source_used, target_used = int(source[start - 1]), int(target[start - 1])
        ends = np.array(stops)
        starts = np.concatenate([[0], ends[:-1]])
        return EpochPlan(epoch, order, starts, ends, np.zeros(len(ends), np.int64), self.shapes)


def packed_shape(
    source: Lengths, target: Lengths, counts: npt.NDArray[np.float64], tokens_per_batch: int
) -> BatchShape:
    """One static shape: the longer side gets the whole budget, the other a share by the length ratio of the corpus.

    The number of sentences in N tokens has mean N / m and variance N v / m^3, lengths having mean m and variance v.
    """
    totals = np.array([counts @ source, counts @ target])
    sizes = tokens_per_batch * totals / totals.max()
    needed = np.maximum(sizes, [source.max(), target.max()])
    rounded = -(-needed // PACKED_MULTIPLE).astype(np.int64) * PACKED_MULTIPLE
    room_source, room_target = np.minimum(rounded, tokens_per_batch).tolist()
    longer = target if totals[1] >= totals[0] else source
    mean = totals.max() / counts.sum()
    variance = counts @ (longer - mean) ** 2 / counts.sum()
    slots = tokens_per_batch / mean + SPARE_DEVIATIONS * np.sqrt(tokens_per_batch * variance / mean**3)
    return BatchShape(int(-(-slots // 8) * 8 + 8), room_source, room_target)
