"""Memory limits: batches split into pieces when they do not fit, and the largest batch that does, found by trying."""

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from deepnmt.data.collate import AnyBatch, Batch, PackedBatch
from deepnmt.data.epoch_plan import PACKED_MULTIPLE
from deepnmt.errors import RunError
from deepnmt.training.distributed import World


def num_cells(batch: AnyBatch) -> int:
    """The size of a batch: tokens of both sides, padding included."""
    return batch.source.numel() + batch.target_input.numel()


@dataclass
class Splitter:
    """Remembers what fits after a batch did not, so that later batches are split before they are tried.

    A padded batch is split by rows into pieces of at most `limit` cells; a packed one into pieces of one shape, with
    `room` for this many source and target tokens. The pieces' losses and gradients add up to the batch's.
    """

    limit: int | None = None
    room: tuple[int, int] | None = None
    has_warned: bool = False

    def cut(self, batches: Sequence[AnyBatch]) -> list[AnyBatch]:
        """The pieces of these batches; `room` first grows to the longest sentence among them."""
        if self.room is not None:
            self.room = _at_least(self.room, _longest(batches))
        return [piece for batch in batches for piece in self._cut(batch)]

    def _cut(self, batch: AnyBatch) -> Sequence[AnyBatch]:
        if isinstance(batch, PackedBatch):
            sizes = sizes_of(batch)
            if self.room is None or (sizes[0] <= self.room[0] and sizes[1] <= self.room[1]):
                return [batch]
            return batch.cut(min(self.room[0], sizes[0]), min(self.room[1], sizes[1]))
        if self.limit is None or num_cells(batch) <= self.limit or len(batch.source) < 2:
            return [batch]
        return [piece for half in batch.split() for piece in self._cut(half)]

    def shrink(self, failed: AnyBatch, batches: Sequence[AnyBatch], world: World) -> None:
        """Make `cut` return smaller pieces of these batches, one of which did not fit."""
        if isinstance(failed, Batch):
            _refuse_one_pair(failed)
            self.limit = max(num_cells(half) for half in failed.split())
            pieces = f"at most {self.limit:,} tokens"
        else:
            longest = _longest(batches)
            sizes = sizes_of(failed)
            room = _smaller(sizes[0], longest[0]), _smaller(sizes[1], longest[1])
            if room == sizes:
                raise RunError(_one_pair(*_largest_pair(batches)))
            self.room = room
            pieces = f"at most {room[0]:,} source and {room[1]:,} target tokens"
        if not self.has_warned:
            self.has_warned = True
            where = f" on rank {world.rank}" if world.size > 1 else ""
            print(
                f"deepnmt: out of memory{where}: a batch of {num_cells(failed):,} tokens (both sides) does not fit; "
                f"from now on batches are split into pieces of {pieces}, with the same updates as a result "
                "(a lower batching.tokens_per_batch avoids splitting)",
                file=sys.stderr,
                flush=True,
            )

    def agree(self, world: World) -> None:
        """Use the smallest pieces of any rank on every rank, so that a checkpoint holds for all."""
        if world.size > 1:
            limit, source, target = (
                -world.max(-(number or sys.maxsize)) for number in (self.limit, *(self.room or (None, None)))
            )
            self.limit = None if limit == sys.maxsize else limit
            self.room = None if source == sys.maxsize else (source, target)


def sizes_of(batch: AnyBatch) -> tuple[int, int]:
    """Tokens of the source and the target, padding included."""
    return batch.source.numel(), batch.target_input.numel()


def _longest(batches: Sequence[AnyBatch]) -> tuple[int, int]:
    lengths = [batch.lengths() for batch in batches if isinstance(batch, PackedBatch)]
    return max(int(source.max()) for source, _ in lengths), max(int(target.max()) for _, target in lengths)


def _largest_pair(batches: Sequence[AnyBatch]) -> tuple[int, int]:
    pairs = [pair for batch in batches if isinstance(batch, PackedBatch) for pair in zip(*batch.lengths(), strict=True)]
    source, target = max(pairs, key=sum)
    return int(source), int(target)


def _at_least(room: tuple[int, int], longest: tuple[int, int]) -> tuple[int, int]:
    """Rounded up to multiples, so that it does not grow again for every sentence that is one token longer."""
    source, target = (
        size if size >= need else -(-need // PACKED_MULTIPLE) * PACKED_MULTIPLE
        for size, need in zip(room, longest, strict=True)
    )
    return source, target


def _smaller(size: int, need: int) -> int:
    """A little over half: two pieces then hold one batch, although neither can be filled to the last token."""
    half = max(size * 17 // 32, need)
    rounded = -(-half // PACKED_MULTIPLE) * PACKED_MULTIPLE
    return rounded if rounded < size else min(half, size)


def _one_pair(source: int, target: int) -> str:
    return (
        f"out of memory: one sentence pair of {source} source and {target} target tokens does not fit; "
        "lower batching.max_length or set training.activation_checkpointing = true"
    )


def _refuse_one_pair(batch: Batch) -> None:
    if len(batch.source) < 2:
        raise RunError(_one_pair(batch.source.shape[1], batch.target_input.shape[1]))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Also if it caused another error, or comes from a library without a type for it."""
    while error is not None:
        text = str(error) if isinstance(error, RuntimeError) else ""
        if isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in text or "ALLOC_FAILED" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def free_memory(device: torch.device) -> None:
    """Release cached memory, also that of unreachable cycles, which failed passes leave behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def largest_that_fits(fits: Callable[[int], bool], start: int, most: int, grain: int = 256) -> int | None:
    """The largest multiple of `grain` up to `most` (at least `grain`) that `fits` accepts, or None.

    Doubles from `start`, then halves the gap; calls `fits` about 2 log2(most / grain) times.
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


def even_share(most: int, limit: int, grain: int = PACKED_MULTIPLE) -> int:
    """The size up to `limit` (at least `grain`) that divides `most` into passes as evenly as `grain` allows."""
    if most <= limit:
        return most
    passes = -(-most // (limit // grain * grain))
    return -(-most // (passes * grain)) * grain
