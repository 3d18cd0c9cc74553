"""A model as a step function for search, with a cache made for beams: nothing of the past is ever copied.

The keys and values of all hypotheses of a sentence stand in one buffer, position after position, K at each. When the
search reorders its hypotheses, only the table of who descends from whom changes: each of the K queries of a sentence
looks at the whole buffer and sees its own ancestors there. This reads the same bytes as K separate pasts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility, attend_padded
from deepnmt.model.cache import BeamVisibility
from deepnmt.model.transformer import Transformer

FIRST_CAPACITY = 32


@dataclass(frozen=True)
class Past:
    """B sentences of K hypotheses. Buffers are written in place; a `Past` is spent when it was stepped from."""

    buffers: list[KeysValues]  # for each decoder layer (B, capacity, K, heads, head_dim)
    ancestors: Tensor  # (B, K, capacity, K): [b, k, t, j] says that row j was the ancestor of row k at position t
    memory: list[KeysValues]  # for each decoder layer (B, S, heads, head_dim)
    padding: Tensor  # (B, S)
    length: int

    def reorder(self, rows: Tensor) -> "Past":
        sentences, beam = self.ancestors.shape[:2]
        if beam == 1:
            return self
        flat = self.ancestors.flatten(0, 1)
        return replace(self, ancestors=flat.index_select(0, rows).view(sentences, beam, *flat.shape[1:]))

    def select(self, sentences: Tensor) -> "Past":
        def chosen(layers: list[KeysValues]) -> list[KeysValues]:
            return [KeysValues(*(part.index_select(0, sentences) for part in layer)) for layer in layers]

        return replace(
            self,
            buffers=chosen(self.buffers),
            ancestors=self.ancestors.index_select(0, sentences),
            memory=chosen(self.memory),
            padding=self.padding.index_select(0, sentences),
        )

    def with_room(self) -> "Past":
        """A past with room for one more position: the buffers double when they are full."""
        capacity = self.ancestors.shape[2]
        if self.length < capacity:
            return self

        def doubled(part: Tensor, dim: int) -> Tensor:
            return torch.cat([part, torch.zeros_like(part)], dim=dim)

        buffers = [KeysValues(*(doubled(part, 1) for part in layer)) for layer in self.buffers]
        return replace(self, buffers=buffers, ancestors=doubled(self.ancestors, 2))


class AncestorVisibility(Visibility):
    """The hypotheses of a sentence, as the positions of one query, each see their own ancestors in the buffer."""

    def __init__(self, buffer: KeysValues, ancestors: Tensor, length: int) -> None:
        """ancestors: (B, K, length, K), with the new position"""
        self.buffer, self.length = buffer, length
        self.beam = ancestors.shape[1]
        self.visible = ancestors.flatten(2).unsqueeze(1) if self.beam > 1 else None

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query and seen: (B * K, 1, heads, head_dim)"""
        folded = query.view(-1, self.beam, *query.shape[2:])
        for part, new in zip(self.buffer, seen, strict=True):
            part[:, self.length - 1] = new.view_as(folded)
        past = KeysValues(*(part[:, : self.length].flatten(1, 2) for part in self.buffer))
        return attend_padded(folded, past, dropout, visible=self.visible).reshape_as(query)


class Engine:
    """A model, its output projection (which may be packed or quantised), and steps over `Past`."""

    def __init__(self, model: Transformer, project: Callable[[Tensor], Tensor] | None = None) -> None:
        self.model = model
        self.project = project or model.project

    @torch.inference_mode()
    def start(self, source: Tensor, beam: int) -> Past:
        """source: (B, S) ids, padded at the end"""
        cache = self.model.start(self.model.encode(source), beam=beam)
        sentences, memory = len(source), cache.memory
        stack = self.model.config.decoder
        shape = (sentences, FIRST_CAPACITY, beam, stack.num_heads, stack.dim // stack.num_heads)
        # Zeros, not garbage: a weight of zero times NaN would still be NaN.
        buffers = [KeysValues(layer.keys.new_zeros(shape), layer.keys.new_zeros(shape)) for layer in memory]
        ancestors = torch.zeros(sentences, beam, FIRST_CAPACITY, beam, dtype=torch.bool, device=source.device)
        return Past(buffers, ancestors, memory, cache.padding, length=0)

    def step(self, symbols: Tensor, past: Past) -> tuple[Tensor, Past]:
        """The step function of the search: symbols (B * K,) -> logits (B * K, V) of the next position."""
        past = past.with_room()
        beam, length = past.ancestors.shape[1], past.length + 1
        past.ancestors[:, :, past.length] = torch.eye(beam, dtype=torch.bool, device=symbols.device)
        ancestors = past.ancestors[:, :, :length]
        over_past = [AncestorVisibility(buffer, ancestors, length) for buffer in past.buffers]
        over_memory = [BeamVisibility(past.padding, beam)] * len(past.memory)
        position = torch.tensor([past.length], device=symbols.device)
        embedded = self.model.target_embedding(symbols.unsqueeze(1), position)
        (features,) = self.model.decoder(embedded, list(zip(over_past, past.memory, over_memory, strict=True)))
        return self.project(features.squeeze(1)), replace(past, length=length)
