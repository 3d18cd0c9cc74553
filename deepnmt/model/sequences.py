"""Ids of many sentences in one tensor, and which positions attend to which."""

from functools import cached_property

import torch
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility, attend_padded, attend_padded_relatively
from deepnmt.model.kernels.dropout import fresh_seed
from deepnmt.model.kernels.packed_rows import Rows
from deepnmt.model.positions import RelativePositions


class PaddedSequences:
    """ids: (B, S), sentences padded at their ends."""

    def __init__(self, ids: Tensor, pad_id: int) -> None:
        self.ids = ids
        self.padding = ids == pad_id  # True where there is nothing

    def positions(self) -> Tensor:
        """The place of each id in its sentence, from zero; broadcastable to ids."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)

    def whole(self) -> Visibility:
        """Every position sees its whole sentence."""
        return PaddedVisibility(visible=~self.padding[:, None, None, :])

    def past(self) -> Visibility:
        """Every position sees itself and what came before it in its sentence."""
        return PaddedVisibility(causal=True)

    def translated(self, source: "Sequences") -> Visibility:
        """Every position sees the whole sentence of `source` that it translates."""
        return source.whole()


class PaddedVisibility(Visibility):
    """Every query of a sentence sees its `visible` keys (B, 1, 1, S), or if `causal`, those up to itself.

    Padding is at the end of a sentence, so no real position sees it there either.
    """

    def __init__(self, visible: Tensor | None = None, causal: bool = False) -> None:
        self.visible, self.causal = visible, causal

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        return attend_padded(query, seen, dropout, self.visible, self.causal)

    def attend_relatively(self, projected: Tensor, relative: RelativePositions, dropout: float) -> Tensor:
        return attend_padded_relatively(projected, relative, dropout, self.visible, self.causal)


class PackedSequences:
    """ids: (N,), sentences laid end to end; sentence i is offsets[i] to offsets[i + 1]. The rest is unused.

    offsets: (M + 1,) int32; sentences may be empty, so that N and M can stay the same from batch to batch.
    """

    def __init__(self, ids: Tensor, offsets: Tensor) -> None:
        self.ids, self.offsets = ids, offsets

    def positions(self) -> Tensor:
        """From zero in every sentence; zero in the tail, which may be longer than there are learned positions."""
        return self._own_bounds[0]

    def bounds_in(self, other: "PackedSequences") -> tuple[Tensor, Tensor]:
        """For every position here, where the sentence of the same number starts and ends there; (0, 0) for the tail."""
        _, start, end = self._own_bounds if other is self else self._bounds_in(other)
        return start, end

    @cached_property
    def _own_bounds(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._bounds_in(self)

    def _bounds_in(self, other: "PackedSequences") -> tuple[Tensor, Tensor, Tensor]:
        """The position of every place in its sentence here, and that sentence's bounds there."""
        if self.ids.is_cuda:
            from deepnmt.model.kernels.bounds_triton import bounds

            return bounds(self.offsets, other.offsets, len(self.ids))
        return plain_bounds(self.offsets, other.offsets, len(self.ids))

    def whole(self) -> Visibility:
        return self._seen(self, causal=False)

    def past(self) -> Visibility:
        return self._seen(self, causal=True)

    def translated(self, source: "Sequences") -> Visibility:
        if not isinstance(source, PackedSequences):
            raise TypeError("packed targets need packed sources")
        return self._seen(source, causal=False)

    def _seen(self, other: "PackedSequences", causal: bool) -> Visibility:
        if self.ids.is_cuda:
            return PackedVisibility([*self.bounds_in(other), *other.bounds_in(self)], causal)
        return Rows(self.offsets, other.offsets, len(self.ids), len(other.ids), causal)


Sequences = PaddedSequences | PackedSequences


def plain_bounds(own: Tensor, other: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """own, other: offsets (M + 1,) -> (count,) each; zeros in the tail."""
    place = torch.arange(count, device=own.device, dtype=torch.int32)
    sentence = torch.searchsorted(own, place, right=True) - 1
    used = sentence < len(own) - 1
    limits = torch.cat([other, other.new_zeros(1)])
    return (place - own[sentence]) * used, limits[sentence] * used, limits[sentence + 1] * used


class PackedVisibility(Visibility):
    """On a GPU. `attend_padded` is the plain twin.

    ranges: four int32 tensors. Query i sees the keys start[i] <= j < end[i], and key j is seen by the queries
    back_start[j] <= i < back_end[j]. A query that sees nothing (the unused tail) attends to zero.
    """

    def __init__(self, ranges: list[Tensor], causal: bool) -> None:
        self.ranges, self.causal = ranges, causal

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        return self._attend([query, *seen], dropout)[0]

    def attend_itself(self, projected: Tensor, dropout: float) -> Tensor:
        return self._attend([projected], dropout)[0]

    def attend_relatively(self, projected: Tensor, relative: RelativePositions, dropout: float) -> Tensor:
        bias = projected[:, 0] @ relative.keys.to(projected.dtype).T
        attended, shares = self._attend([projected], dropout, bias, relative.values is not None)
        return attended if relative.values is None else attended + shares @ relative.values.to(projected.dtype)

    def _attend(
        self, parts: list[Tensor], dropout: float, bias: Tensor | None = None, sharing: bool = False
    ) -> tuple[Tensor, Tensor]:
        from deepnmt.model.kernels.packed_attention_triton import packed_attention

        seed = fresh_seed(parts[0].device)
        attended, _, shares = packed_attention(parts, bias, self.ranges, seed, self.causal, dropout, sharing)
        return attended, shares
