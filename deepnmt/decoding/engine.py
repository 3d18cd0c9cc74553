"""A model as a step function for search, with a cache made for beams: reordering hypotheses copies no keys or values.

The keys and values of all hypotheses of a sentence stand in one row of slots, K more at each position. When the search
reorders its hypotheses, only the table of who descends from whom changes: each of the K queries of a sentence looks at
all slots and sees those of its own ancestors. Hypotheses of a beam have most ancestors in common, so when the slots
run out, those that nobody descends from are dropped, and far fewer than K times the length are ever looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility, attend_padded
from deepnmt.model.cache import BeamVisibility
from deepnmt.model.transformer import Transformer

ROOM = 16  # positions, between one look for unused slots and the next


@dataclass(frozen=True)
class Past:
    """B sentences of K hypotheses. Slots are written in place; a `Past` is spent when it was stepped from."""

    slots: list[KeysValues]  # for each decoder layer (B, heads, capacity, head_dim)
    ancestors: Tensor  # (B, K, capacity): is what stands in this slot an ancestor of this hypothesis?
    filled: int  # slots in use
    length: int  # positions decoded
    memory: list[KeysValues]  # for each decoder layer (B, S, heads, head_dim)
    padding: Tensor  # (B, S)

    @property
    def beam(self) -> int:
        return self.ancestors.shape[1]

    def reorder(self, rows: Tensor) -> "Past":
        if self.beam == 1:
            return self
        ancestors = self.ancestors.flatten(0, 1).index_select(0, rows)
        return replace(self, ancestors=ancestors.view_as(self.ancestors))

    def select(self, sentences: Tensor) -> "Past":
        def chosen(layers: list[KeysValues]) -> list[KeysValues]:
            return [KeysValues(*(part.index_select(0, sentences) for part in layer)) for layer in layers]

        return replace(
            self,
            slots=chosen(self.slots),
            ancestors=self.ancestors.index_select(0, sentences),
            memory=chosen(self.memory),
            padding=self.padding.index_select(0, sentences),
        )

    def with_room(self) -> "Past":
        """A past with free slots for one more position. This alone changes shapes, and makes the host wait."""
        if self.filled + self.beam <= self.ancestors.shape[2]:
            return self
        kept, filled = self._used() if self.beam > 1 and self.filled else (None, self.filled)
        capacity = filled + max(filled, ROOM * self.beam)

        def moved(part: Tensor) -> Tensor:
            """part: (B, heads or K, capacity, ...)"""
            # Zeros, not garbage: a weight of zero times NaN would still be NaN.
            larger = part.new_zeros(*part.shape[:2], capacity, *part.shape[3:])
            if kept is None:
                larger[:, :, :filled] = part[:, :, :filled]
            else:
                index = kept.view(len(kept), 1, filled, *[1] * (part.ndim - 3)).expand(
                    -1, part.shape[1], -1, *part.shape[3:]
                )
                torch.gather(part, 2, index, out=larger[:, :, :filled])
            return larger

        slots = [KeysValues(*(moved(part) for part in layer)) for layer in self.slots]
        return replace(self, slots=slots, ancestors=moved(self.ancestors), filled=filled)

    def _used(self) -> tuple[Tensor, int]:
        """The slots that are somebody's ancestor (B, most); sentences with fewer are filled up with unused ones."""
        used = self.ancestors[:, :, : self.filled].any(1)
        most = int(used.sum(1).max())
        return used.byte().argsort(dim=1, descending=True, stable=True)[:, :most], most


class AncestorVisibility(Visibility):
    """The hypotheses of a sentence, as the positions of one query, each see the slots of their ancestors."""

    def __init__(self, slots: KeysValues, visible: Tensor | None, filled: int, beam: int) -> None:
        """visible: (B, 1, K, filled), the new slots included"""
        self.slots, self.visible, self.filled, self.beam = slots, visible, filled, beam

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query and seen: (B * K, 1, heads, head_dim)"""
        folded = query.reshape(-1, self.beam, *query.shape[2:]).to(self.slots.keys.dtype)
        for part, new in zip(self.slots, seen, strict=True):
            part[:, :, self.filled - self.beam : self.filled] = new.reshape(folded.shape).transpose(1, 2)
        past = KeysValues(*(part[:, :, : self.filled].transpose(1, 2) for part in self.slots))
        return attend_padded(folded, past, dropout, visible=self.visible).reshape(query.shape).to(query.dtype)


class MemoryVisibility(BeamVisibility):
    """The hypotheses of a sentence see its source, in the type in which that is kept."""

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        return super().attend(query.to(seen.keys.dtype), seen, dropout).to(query.dtype)


class Engine:
    """A model, its output projection (which may be packed or quantised), and steps over `Past`.

    Keys and values are kept in `cache_dtype`, else in the model's type: half the bytes are half the time of attention
    on a CPU, which waits for its memory there.
    """

    def __init__(
        self,
        model: Transformer,
        project: Callable[[Tensor], Tensor] | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.project = project or model.project
        self.cache_dtype = cache_dtype

    @torch.inference_mode()
    def start(self, source: Tensor, beam: int) -> Past:
        """source: (B, S) ids, padded at the end"""
        cache = self.model.start(self.model.encode(source), beam=beam)
        stack = self.model.config.decoder
        shape = (len(source), stack.num_heads, 0, stack.dim // stack.num_heads)
        dtype = self.cache_dtype or cache.memory[0].keys.dtype
        slots = [KeysValues(*(part.new_zeros(shape, dtype=dtype) for part in layer)) for layer in cache.memory]
        ancestors = torch.zeros(len(source), beam, 0, dtype=torch.bool, device=source.device)
        memory = [KeysValues(*(_heads_first(part.to(dtype)) for part in layer)) for layer in cache.memory]
        return Past(slots, ancestors, filled=0, length=0, memory=memory, padding=cache.padding)

    def step(self, symbols: Tensor, past: Past) -> tuple[Tensor, Past]:
        """The step function of the search: symbols (B * K,) -> logits (B * K, V) of the next position."""
        past = past.with_room()
        beam, filled = past.beam, past.filled + past.beam
        past.ancestors[:, :, past.filled : filled] = torch.eye(beam, dtype=torch.bool, device=symbols.device)
        visible = past.ancestors[:, None, :, :filled] if beam > 1 else None
        over_past = [AncestorVisibility(slots, visible, filled, beam) for slots in past.slots]
        over_memory = [MemoryVisibility(past.padding, beam)] * len(past.memory)
        position = torch.tensor([past.length], device=symbols.device)
        embedded = self.model.target_embedding(symbols.unsqueeze(1), position)
        (features,) = self.model.decoder(embedded, list(zip(over_past, past.memory, over_memory, strict=True)))
        return self.project(features.squeeze(1)), replace(past, filled=filled, length=past.length + 1)


def _heads_first(part: Tensor) -> Tensor:
    """The same (B, S, heads, head_dim), laid out head after head: every step reads it in this order."""
    return part.transpose(1, 2).contiguous().transpose(1, 2)
