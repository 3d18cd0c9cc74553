"""From sentence numbers to tensors, gathered from the memory maps without a loop over rows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepnmt.data.dataset import Side
from deepnmt.data.epoch_plan import BatchShape
from deepnmt.data.vocabulary import EOS, PAD

Array = npt.NDArray[np.int64]


class _Tensors:
    """Operations on all tensors of a batch."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, function: Any) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {name: function(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True)
class Batch(_Tensors):
    """Padded: source (B, S), target_input and target_output (B, T), int64. Counts exclude padding."""

    source: Tensor
    target_input: Tensor
    target_output: Tensor
    num_source_tokens: int
    num_target_tokens: int
    sentences: npt.NDArray[np.integer]  # numbered through all corpora in their order

    def split(self) -> "tuple[Batch, Batch]":
        """Split the batch by rows into two halves, for a device that lacks memory for the whole."""
        if len(self.source) < 2:
            raise ValueError("a batch of one sentence cannot be split")
        middle = len(self.source) // 2
        return self._part(slice(middle)), self._part(slice(middle, None))

    def _part(self, rows: slice) -> "Batch":
        tensors = self.source[rows], self.target_input[rows], self.target_output[rows]
        sources, targets = (int((tensor != PAD).sum()) for tensor in (tensors[0], tensors[2]))
        return Batch(*tensors, sources, targets, self.sentences[rows])


@dataclass(frozen=True)
class PackedBatch(_Tensors):
    """Packed: sentence i is source[source_offsets[i]:source_offsets[i + 1]], the same for the target.

    source (Ns,), target_input and target_output (Nt,) int64, offsets (M + 1,) int32. Unused slots are empty
    (their offsets are the number of tokens used), and the tail of the sides is padding.
    """

    source: Tensor
    source_offsets: Tensor
    target_input: Tensor
    target_output: Tensor
    target_offsets: Tensor
    num_source_tokens: int
    num_target_tokens: int
    sentences: npt.NDArray[np.integer]

    def lengths(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Lengths of the sentences on both sides, eos counted."""
        source, target = (np.diff(offsets.numpy()) for offsets in (self.source_offsets, self.target_offsets))
        return source[target > 0], target[target > 0]

    def cut(self, source_room: int, target_room: int) -> "list[PackedBatch]":
        """The same sentences in smaller batches, each with room for this many tokens; every sentence must fit."""
        source, target = (offsets.numpy() for offsets in (self.source_offsets, self.target_offsets))
        pieces, start, end = [], 0, int(np.count_nonzero(np.diff(target)))
        while start < end:
            stops = [
                int(offsets.searchsorted(offsets[start] + room, "right")) - 1
                for offsets, room in ((source, source_room), (target, target_room))
            ]
            stop = min(*stops, end)
            if stop == start:
                raise ValueError(f"sentence {start} of a packed batch is longer than {source_room} or {target_room}")
            pieces.append(self._part(start, stop, source_room, target_room))
            start = stop
        return pieces

    def _part(self, start: int, stop: int, source_room: int, target_room: int) -> "PackedBatch":
        """Sentences `start` to `stop`; a part of a batch without loss has no loss either."""
        (source, sources), (target, targets) = (
            (slice(int(offsets[start]), int(offsets[stop])), int(offsets[stop] - offsets[start]))
            for offsets in (self.source_offsets, self.target_offsets)
        )
        offsets = slice(start, stop + 1)
        return PackedBatch(
            _fill(self.source[source], source_room, PAD),
            _fill(self.source_offsets[offsets] - source.start, len(self.source_offsets), sources),
            _fill(self.target_input[target], target_room, PAD),
            _fill(self.target_output[target], target_room, PAD),
            _fill(self.target_offsets[offsets] - target.start, len(self.target_offsets), targets),
            num_source_tokens=sources if self.num_source_tokens else 0,
            num_target_tokens=targets if self.num_target_tokens else 0,
            sentences=self.sentences[start:stop],
        )


def _fill(values: Tensor, size: int, rest: int) -> Tensor:
    """`size` elements: the values, then `rest` repeated. In pinned memory if the values are."""
    filled = torch.full((size,), rest, dtype=values.dtype, pin_memory=values.is_pinned())
    filled[: len(values)] = values
    return filled


AnyBatch = Batch | PackedBatch


def pad(source: Side, target: Side, shape: BatchShape, sentences: npt.NDArray[np.integer]) -> Batch:
    rows = np.arange(len(source))
    starts, sizes = (rows * shape.source, rows * shape.target), (len(rows) * shape.source, len(rows) * shape.target)
    source_ids, inputs, outputs = (ids.view(len(rows), -1) for ids in _lay_out(source, target, starts, sizes))
    return Batch(source_ids, inputs, outputs, source.tokens, target.tokens, sentences)


def pack(source: Side, target: Side, shape: BatchShape, sentences: npt.NDArray[np.integer]) -> PackedBatch:
    starts, offsets = [], []
    for side in (source, target):
        starts.append(side.offsets[:-1] + np.arange(len(side)))
        offsets.append(np.full(shape.rows + 1, side.tokens, np.int32))
        offsets[-1][: len(side)] = starts[-1]
    source_ids, inputs, outputs = _lay_out(source, target, starts, (shape.source, shape.target))
    source_offsets, target_offsets = map(torch.from_numpy, offsets)
    return PackedBatch(
        source_ids, source_offsets, inputs, outputs, target_offsets, source.tokens, target.tokens, sentences
    )


def _lay_out(
    source: Side, target: Side, starts: Sequence[Array], sizes: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target input and target output in arrays of these sizes; each sentence begins at its start."""
    target_places = target.places(starts[1])
    return (
        _place(source.ids, source.places(starts[0]), starts[0] + source.lengths, sizes[0]),
        _place(target.ids, target_places + 1, starts[1], sizes[1]),
        _place(target.ids, target_places, starts[1] + target.lengths, sizes[1]),
    )


def _place(values: npt.NDArray[np.integer], places: Array, eos_places: Array, size: int) -> Tensor:
    ids = np.full(size, PAD)
    ids[places] = values
    ids[eos_places] = EOS
    return torch.from_numpy(ids)


def without_loss(batch: AnyBatch) -> AnyBatch:
    """The batch without targets, hence without gradient, for a rank that has no batch but must stay in step."""
    nothing = torch.full_like(batch.target_output, PAD)
    return replace(
        batch, target_output=nothing, num_source_tokens=0, num_target_tokens=0, sentences=batch.sentences[:0]
    )
