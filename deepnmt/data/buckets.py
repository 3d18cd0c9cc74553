"""A few rectangles of (source length, target length) that cover a corpus with little padding."""

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.integer]
EXACT_LENGTHS = 256  # longer ones are rounded up to one part in 32, which bounds the table of buckets


@dataclass(frozen=True)
class Buckets:
    """Batches of bucket i are (rows[i], sources[i]) and (rows[i], targets[i]); ascending by source plus target.

    Sentences that do not fill a batch of bucket i move to bucket overflow[i], which is at least as long on both sides.
    The last bucket has room for any pair and no overflow (-1).
    """

    sources: Array
    targets: Array
    rows: Array
    overflow: Array
    _index: tuple[Array, Array, npt.NDArray[np.uint16]]

    @classmethod
    def fit(
        cls, source: Lengths, target: Lengths, counts: npt.NDArray[np.float64], tokens_per_batch: int, max_shapes: int
    ) -> "Buckets":
        """Split the plane of lengths where that saves the most padding, while every part fills at least one batch.

        `counts` are the expected occurrences of each sentence in an epoch.
        """
        levels = _levels(source, tokens_per_batch), _levels(target, tokens_per_batch)
        edges = np.unique(levels[0][source]), np.unique(levels[1][target])
        level_of = np.searchsorted(edges[0], levels[0]), np.searchsorted(edges[1], levels[1])
        cells = level_of[0][source] * len(edges[1]) + level_of[1][target]
        sizes = len(edges[0]), len(edges[1])
        histogram = np.bincount(cells, counts, sizes[0] * sizes[1]).astype(np.float64).reshape(sizes)
        parts = _Splitter(histogram, edges, tokens_per_batch).split(max_shapes)
        parts.sort(key=lambda part: int(edges[0][part[1] - 1] + edges[1][part[3] - 1]))
        index = np.zeros(histogram.shape, np.uint16)
        for number, (top, bottom, left, right) in enumerate(parts):
            index[top:bottom, left:right] = number
        sources = np.array([edges[0][part[1] - 1] for part in parts], np.int64)
        targets = np.array([edges[1][part[3] - 1] for part in parts], np.int64)
        if sources[-1] < sources.max() or targets[-1] < targets.max():
            sources, targets = np.append(sources, sources.max()), np.append(targets, targets.max())
        rows = fitting_rows(np.maximum(sources, targets), tokens_per_batch)
        return cls(sources, targets, rows, _overflow(sources, targets), (level_of[0], level_of[1], index))

    def assign(self, source: npt.NDArray[np.integer], target: npt.NDArray[np.integer]) -> npt.NDArray[np.uint16]:
        """The bucket of each pair of lengths, which must be among those the buckets were fitted to."""
        source_level, target_level, index = self._index
        return index[source_level[source], target_level[target]]


def fitting_rows(longest: Array | int, tokens_per_batch: int) -> Array:
    """The rows of each length that fit into a batch; from eight on, a multiple of eight for the matrix units."""
    rows = tokens_per_batch // longest
    return np.where(rows >= 8, rows // 8 * 8, rows)


def _levels(lengths: Lengths, limit: int) -> Array:
    """For each length up to the longest: the length it is rounded up to."""
    table = np.arange(lengths.max() + 1)
    octave = np.log2(np.maximum(table, EXACT_LENGTHS)).astype(np.int64)
    step = 2**octave // 32
    rounded = np.minimum(-(-table // step) * step, limit)
    return np.where(table <= EXACT_LENGTHS, table, rounded)


def _overflow(sources: Array, targets: Array) -> Array:
    overflow = np.full(len(sources), -1)
    for number in range(len(sources) - 1):
        later = slice(number + 1, None)
        fits = (sources[later] >= sources[number]) & (targets[later] >= targets[number])
        overflow[number] = number + 1 + int(np.argmax(fits))  # the first is the smallest; the last always fits
    return overflow


Part = tuple[int, int, int, int]  # rows [0:1] and columns [2:3] of the histogram
Cut = tuple[int, int]  # axis, first index of the second half


class _Splitter:
    """Best-first splitting of a 2-D histogram of lengths into rectangles, each the bounding box of its sentences."""

    def __init__(self, histogram: npt.NDArray[np.float64], edges: tuple[Array, Array], tokens_per_batch: int) -> None:
        self.histogram, self.edges, self.tokens_per_batch = histogram, edges, tokens_per_batch

    def split(self, max_parts: int) -> list[Part]:
        whole = self._tighten((0, self.histogram.shape[0], 0, self.histogram.shape[1]))
        heap = [self._candidate(whole)]
        # One part is reserved for the bucket that holds any pair.
        while len(heap) < max_parts - 1 and (cut := heap[0][2]) is not None:
            _, (top, bottom, left, right), _ = heapq.heappop(heap)
            axis, at = cut
            halves = (top, at, left, right), (at, bottom, left, right)
            if axis == 1:
                halves = (top, bottom, left, at), (top, bottom, at, right)
            for half in halves:
                heapq.heappush(heap, self._candidate(self._tighten(half)))
        return [part for _, part, _ in heap]

    def _tighten(self, part: Part) -> Part:
        top, bottom, left, right = part
        held = self.histogram[top:bottom, left:right] > 0
        rows, columns = np.flatnonzero(held.any(1)), np.flatnonzero(held.any(0))
        return top + int(rows[0]), top + int(rows[-1]) + 1, left + int(columns[0]), left + int(columns[-1]) + 1

    def _candidate(self, part: Part) -> tuple[float, Part, Cut | None]:
        gains = [self._best_cut(part, axis) for axis in (0, 1)]
        axis = int(gains[1][0] > gains[0][0])
        gain, at = gains[axis]
        return (-gain, part, (axis, at)) if gain > 0 else (0.0, part, None)

    def _best_cut(self, part: Part, axis: int) -> tuple[float, int]:
        """The number of padding tokens that the best cut across `axis` saves, and its position."""
        top, bottom, left, right = part
        held = self.histogram[top:bottom, left:right]
        along, across = self.edges[0][top:bottom], self.edges[1][left:right]
        if axis == 1:
            held, along, across = held.T, across, along
        if len(along) < 2:
            return 0.0, 0
        widest = across[held.shape[1] - 1 - np.argmax(held[:, ::-1] > 0, axis=1)]
        widest = np.where(held.any(1), widest, 0)
        counts = np.cumsum(held.sum(1))
        first, second = counts[:-1], counts[-1] - counts[:-1]
        first_shape = along[:-1], np.maximum.accumulate(widest)[:-1]
        second_shape = along[-1], np.maximum.accumulate(widest[::-1])[::-1][1:]
        gains = counts[-1] * (along[-1] + across[-1]) - first * sum(first_shape) - second * sum(second_shape)
        fills = (first >= fitting_rows(np.maximum(*first_shape), self.tokens_per_batch)) & (
            second >= fitting_rows(np.maximum(*second_shape), self.tokens_per_batch)
        )
        gains = np.where(fills, gains, 0.0)
        best = int(np.argmax(gains))
        return float(gains[best]), (left if axis else top) + best + 1
