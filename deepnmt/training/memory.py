"""What fits: batches cut by rows when they do not, and the largest batch found by trying."""

from collections.abc import Callable
from dataclasses import dataclass

from deepnmt.data.collate import AnyBatch, Batch
from deepnmt.errors import RunError


def num_cells(batch: AnyBatch) -> int:
    """The room a batch takes, in tokens of both sides, padding included."""
    return batch.source.numel() + batch.target_input.numel()


@dataclass
class Splitter:
    """Remembers the size that did not fit, so that the next batch of that size is cut before it is tried."""

    limit: int | None = None

    def cut(self, batch: AnyBatch) -> list[AnyBatch]:
        if (
            self.limit is None
            or num_cells(batch) <= self.limit
            or not isinstance(batch, Batch)
            or len(batch.source) < 2
        ):
            return [batch]
        return [piece for half in batch.split() for piece in self.cut(half)]

    def retry(self, batch: AnyBatch) -> list[AnyBatch]:
        """What to do instead of a batch that did not fit."""
        if not isinstance(batch, Batch):
            raise RunError(
                f"out of memory: a packed batch of {num_cells(batch):,} tokens does not fit; lower "
                "batching.tokens_per_batch (training.tokens_per_update stays what the optimiser sees)"
            )
        if len(batch.source) < 2:
            raise RunError(
                f"out of memory: one pair of {batch.source.shape[1]} source and {batch.target_input.shape[1]} target "
                "tokens does not fit; lower batching.max_length or set training.activation_checkpointing = true"
            )
        halves: list[AnyBatch] = list(batch.split())
        self.limit = max(num_cells(half) for half in halves)
        return halves


def largest_that_fits(fits: Callable[[int], bool], start: int, most: int, grain: int = 256) -> int | None:
    """The largest multiple of `grain` up to `most` (at least `grain`) for which `fits` says yes; None if none does.

    Doubles from `start`, then halves the gap; `fits` is asked about 2 log2(most / grain) times.
    """
    low, high = 0, most // grain + 1
    probe = max(start // grain, 1)
    while high - low > 1:
        probe = min(max(probe, low + 1), high - 1)
        if fits(probe * grain):
            low, probe = probe, (probe * 2 if high == most // grain + 1 else (probe + high) // 2)
        else:
            high, probe = probe, (low + probe) // 2
    return low * grain or None
