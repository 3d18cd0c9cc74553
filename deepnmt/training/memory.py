"""Memory limits: batches are split into pieces when they do not fit, and the largest that fits is found by trying."""

import gc
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from deepnmt.data.collate import AnyBatch, Batch, PackedBatch
from deepnmt.data.epoch_plan import PACKED_MULTIPLE
from deepnmt.errors import RunError
from deepnmt.progress import say
from deepnmt.training.distributed import World


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
        sizes = sizes_of(batch)
        if isinstance(batch, PackedBatch):
            room = sizes if self.room is None else (min(self.room[0], sizes[0]), min(self.room[1], sizes[1]))
            return [batch] if room == sizes else batch.cut(*room)
        if self.limit is None or sum(sizes) <= self.limit or len(batch.source) < 2:
            return [batch]
        return [piece for half in batch.split() for piece in self._cut(half)]

    def shrink(self, failed: AnyBatch, batches: Sequence[AnyBatch], world: World) -> None:
        """Make `cut` return smaller pieces of these batches, one of which did not fit."""
        sizes = sizes_of(failed)
        if isinstance(failed, Batch):
            if len(failed.source) < 2:
                raise _one_pair_does_not_fit(*sizes)
            self.limit = max(sum(sizes_of(half)) for half in failed.split())
            pieces = f"at most {self.limit:,} tokens"
        else:
            room = _smaller(sizes[0], _longest(batches)[0]), _smaller(sizes[1], _longest(batches)[1])
            if room == sizes:
                raise _one_pair_does_not_fit(*max(_lengths(batches), key=sum))
            self.room = room
            pieces = f"at most {room[0]:,} source and {room[1]:,} target tokens"
        if not self.has_warned:
            self.has_warned = True
            where = f" on rank {world.rank}" if world.size > 1 else ""
            say(
                f"out of memory{where}: a batch of {sum(sizes):,} tokens (both sides) does not fit; from now on "
                f"batches are split into pieces of {pieces}, which does not change the updates (a lower "
                "batching.tokens_per_batch avoids splitting)"
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


def _lengths(batches: Sequence[AnyBatch]) -> list[tuple[int, int]]:
    """Of the source and target of every pair in packed batches."""
    packed = (batch.lengths() for batch in batches if isinstance(batch, PackedBatch))
    return [pair for sides in packed for pair in zip(*(side.tolist() for side in sides), strict=True)]


def _longest(batches: Sequence[AnyBatch]) -> tuple[int, int]:
    sources, targets = zip(*_lengths(batches), strict=True)
    return max(sources), max(targets)


def _round_up(size: int) -> int:
    return -(-size // PACKED_MULTIPLE) * PACKED_MULTIPLE


def _at_least(room: tuple[int, int], longest: tuple[int, int]) -> tuple[int, int]:
    """Rounded up to multiples, so that it does not grow again for every sentence that is one token longer."""
    source, target = (size if size >= need else _round_up(need) for size, need in zip(room, longest, strict=True))
    return source, target


def _smaller(size: int, need: int) -> int:
    """A little over half: two pieces then hold one batch, although neither can be filled to the last token."""
    half = max(size * 17 // 32, need)
    return _round_up(half) if _round_up(half) < size else min(half, size)


def _one_pair_does_not_fit(source: int, target: int) -> RunError:
    return RunError(
        f"out of memory: one sentence pair of {source} source and {target} target tokens does not fit; "
        "lower batching.max_length or set training.activation_checkpointing = true"
    )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Also if it caused another error, or comes from a library without a type for it."""
    texts = ("CUDA error: out of memory", "ALLOC_FAILED", "DefaultCPUAllocator: can't allocate memory")
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error) for text in texts):
            return True
        error = error.__cause__ or error.__context__
    return False


def free_memory(device: torch.device) -> None:
    """Release cached memory, also that of unreachable cycles, which failed passes leave behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def largest_share(whole: int, fits: Callable[[int], bool]) -> int | None:
    """`whole` tokens, divided evenly into the fewest passes of which one `fits`: the size of a pass, or None."""
    shares = [whole, *(_round_up(-(-whole // passes)) for passes in range(2, -(-whole // PACKED_MULTIPLE) + 1))]
    found = bisect_left(shares, True, key=fits)
    return shares[found] if found < len(shares) else None
