"""A model as a step function for search, with a cache made for beams: reordering hypotheses copies no keys or values.

The keys and values of all hypotheses of a sentence stand in one row of slots, K more at each position. When the search
reorders its hypotheses, only the table of who descends from whom changes: each of the K queries of a sentence looks at
all slots and sees those of its own ancestors. Hypotheses of a beam have most ancestors in common, so slots that nobody
descends from are dropped now and then, and far fewer than K times the length are ever looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility, attend_padded
from deepnmt.model.cache import BeamVisibility
from deepnmt.model.transformer import Transformer

LOOK_EVERY = 16  # positions, for unused slots
WORTH_KEEPING = 0.7  # the share of used slots above which dropping the others does not pay


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

    @property
    def capacity(self) -> int:
        return self.ancestors.shape[2]

    def reorder(self, rows: Tensor) -> "Past":
        if self.beam == 1:
            return self
        ancestors = self.ancestors.flatten(0, 1).index_select(0, rows)
        return replace(self, ancestors=ancestors.view_as(self.ancestors))

    def select(self, sentences: Tensor) -> "Past":
        def choose(part: Tensor) -> Tensor:
            chosen = part.new_empty(len(sentences), *part.shape[1:])
            chosen[:, :, : self.filled] = part[:, :, : self.filled].index_select(0, sentences)
            return chosen

        return replace(
            self,
            slots=[KeysValues(*(choose(part) for part in layer)) for layer in self.slots],
            ancestors=choose(self.ancestors),
            memory=[KeysValues(*(_heads_first(part[sentences]) for part in layer)) for layer in self.memory],
            padding=self.padding[sentences],
        )

    def with_room(self) -> "Past":
        """A past with free slots for one more position: without unused slots if they are many, larger if it is full.

        This alone changes shapes, and makes the host wait.
        """
        past = self
        if self.beam > 1 and self.length and self.length % LOOK_EVERY == 0:
            used = self.ancestors[:, :, : self.filled].any(1)
            most = int(used.sum(1).max())
            if most < WORTH_KEEPING * self.filled:
                # Sentences that use fewer slots than the one that uses most keep some unused ones.
                past = self._moved(used.byte().argsort(dim=1, descending=True, stable=True)[:, :most])
        if past.filled + past.beam > past.capacity:
            past = past._enlarged()
        return past

    def _moved(self, kept: Tensor) -> "Past":
        """Only these slots (B, count) of each sentence, moved to the front."""

        def move(part: Tensor) -> Tensor:
            """part: (B, heads or K, capacity, ...)"""
            shape = part.shape
            index = kept.view(len(kept), 1, -1, *[1] * (part.ndim - 3)).expand(-1, shape[1], -1, *shape[3:])
            part[:, :, : kept.shape[1]] = part.gather(2, index)
            return part

        for layer in self.slots:
            for part in layer:
                move(part)
        return replace(self, ancestors=move(self.ancestors), filled=kept.shape[1])

    def _enlarged(self) -> "Past":
        capacity = max(2 * self.capacity, LOOK_EVERY * self.beam)

        def enlarge(part: Tensor) -> Tensor:
            # What is new is written before it is read.
            larger = part.new_empty(*part.shape[:2], capacity, *part.shape[3:])
            larger[:, :, : self.filled] = part[:, :, : self.filled]
            return larger

        slots = [KeysValues(*(enlarge(part) for part in layer)) for layer in self.slots]
        return replace(self, slots=slots, ancestors=enlarge(self.ancestors))


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
    def start(self, source: Tensor, beam: int, length: int = 0) -> Past:
        """source: (B, S) ids, padded at the end; `length` is how long the longest target may get, where it is known."""
        cache = self.model.start(self.model.encode(source), beam=beam)
        stack = self.model.config.decoder
        # Memory that is never written costs nothing: room for all positions at once saves copying.
        capacity = (length + 1) * beam if length else 0
        shape = (len(source), stack.num_heads, capacity, stack.dim // stack.num_heads)
        dtype = self.cache_dtype or cache.memory[0].keys.dtype
        slots = [KeysValues(*(part.new_empty(shape, dtype=dtype) for part in layer)) for layer in cache.memory]
        ancestors = torch.empty(len(source), beam, capacity, dtype=torch.bool, device=source.device)
        memory = [KeysValues(*(_heads_first(part.to(dtype)) for part in layer)) for layer in cache.memory]
        return Past(slots, ancestors, filled=0, length=0, memory=memory, padding=cache.padding)

    def step(self, symbols: Tensor, past: Past) -> tuple[Tensor, Past]:
        """The step function of the search: symbols (B * K,) -> logits (B * K, V) of the next position.

        At the first position all hypotheses of a sentence are the same: it is computed once, into one slot.
        """
        past = past.with_room()
        beam = past.beam if past.length else 1
        filled = past.filled + beam
        new = torch.eye(beam, dtype=torch.bool, device=symbols.device)
        past.ancestors[:, :, past.filled : filled] = new
        visible = past.ancestors[:, None, :, :filled] if beam > 1 else None
        over_past = [AncestorVisibility(slots, visible, filled, beam) for slots in past.slots]
        over_memory = [MemoryVisibility(past.padding, beam)] * len(past.memory)
        position = torch.tensor([past.length], device=symbols.device)
        embedded = self.model.target_embedding(symbols.view(-1, past.beam)[:, :beam].reshape(-1, 1), position)
        (features,) = self.model.decoder(embedded, list(zip(over_past, past.memory, over_memory, strict=True)))
        logits = self.project(features.squeeze(1))
        if beam < past.beam:
            logits = logits.repeat_interleave(past.beam, 0)
        return logits, replace(past, filled=filled, length=past.length + 1)


def _heads_first(part: Tensor) -> Tensor:
    """The same (B, S, heads, head_dim), laid out head after head: every step reads it in this order."""
    return part.transpose(1, 2).contiguous().transpose(1, 2)
