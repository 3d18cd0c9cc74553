"""The encoder-decoder Transformer: one loop per stack, whatever the norm placement and the connection."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from deepnmt.model.attention import KeysValues
from deepnmt.model.cache import BeamVisibility, Cache, GrowingVisibility
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS, Connection, StackShape
from deepnmt.model.embedding import Embedding, LearnedPositions, SinusoidalPositions
from deepnmt.model.initialization import initialize
from deepnmt.model.layers import DecoderLayer, EncoderLayer
from deepnmt.model.sequences import PaddedSequences, Sequences
from deepnmt.model.sublayer import LayerNorm


class Stack(nn.Module):
    """Layers, and the connection between them. Pre-norm leaves its result unnormalised, so a norm goes on top."""

    def __init__(self, layers: list[nn.Module], config: ModelConfig, stack: StackConfig, num_readers: int) -> None:
        super().__init__()
        shape = StackShape(num_layers=stack.num_layers, dim=stack.dim, norm=config.norm, num_readers=num_readers)
        self.layers = nn.ModuleList(layers)
        self.connection: Connection = CONNECTIONS[stack.connection.kind](stack.connection, shape)
        self.final_norm = LayerNorm(stack.dim) if config.norm == "pre" else nn.Identity()
        self.checkpoints_activations = False

    def forward(self, x: Tensor, arguments: list[tuple[Any, ...]]) -> list[Tensor]:
        """x: the embedding y_0; arguments: what each layer is given besides its input. Returns the stack's memories."""
        connection, history = self.connection, self.connection.begin()
        connection.write(history, x)
        for layer, given in zip(self.layers, arguments, strict=True):
            connection.write(history, self._run(layer, connection.read(history), given))
        return [self.final_norm(memory) for memory in connection.memories(history)]

    def _run(self, layer: nn.Module, x: Tensor, given: tuple[Any, ...]) -> Tensor:
        if self.checkpoints_activations and self.training:
            return checkpoint(layer, x, *given, use_reentrant=False)
        return layer(x, *given)


@dataclass(frozen=True)
class Encoded:
    """What the encoder made of the source: a memory for each decoder layer, and who sees which part of it."""

    memories: list[Tensor]
    source: Sequences


class Transformer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source_tokens = nn.Embedding(config.source_vocab_size, config.encoder.dim, config.pad_id)
        target_tokens = nn.Embedding(config.target_vocab_size, config.decoder.dim, config.pad_id)
        if config.share_embeddings:
            target_tokens = source_tokens
        self.source_embedding = _embedding(config, source_tokens)
        self.target_embedding = _embedding(config, target_tokens)

        num_decoder_layers = config.decoder.num_layers
        encoder_layers: list[nn.Module] = [EncoderLayer(config) for _ in range(config.encoder.num_layers)]
        decoder_layers: list[nn.Module] = [DecoderLayer(config) for _ in range(num_decoder_layers)]
        self.encoder = Stack(encoder_layers, config, config.encoder, num_readers=num_decoder_layers)
        self.decoder = Stack(decoder_layers, config, config.decoder, num_readers=1)
        self.output = None if config.tie_output else nn.Embedding(config.target_vocab_size, config.decoder.dim)
        initialize(self)

    @property
    def output_weight(self) -> Tensor:
        """(V, decoder dim); there is no bias."""
        table = self.target_embedding.tokens if self.output is None else self.output
        return table.weight

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """source: (B, S), target_input: (B, T) ids, padded at the end -> logits (B, T, V)"""
        return self.project(self.features(source, target_input))

    def features(self, source: Tensor | Sequences, target_input: Tensor | Sequences) -> Tensor:
        """The decoder's result before the output projection: (B, T, dim)."""
        return self.decode(target_input, self.encode(source))

    def project(self, features: Tensor) -> Tensor:
        return F.linear(features, self.output_weight)

    def encode(self, source: Tensor | Sequences) -> Encoded:
        sequences = self._sequences(source)
        embedded = self.source_embedding(sequences.ids, sequences.positions())
        memories = self.encoder(embedded, [(sequences.whole(),)] * len(self.encoder.layers))
        if len(memories) == 1:
            memories = memories * self.config.decoder.num_layers
        return Encoded(memories, sequences)

    def decode(self, target_input: Tensor | Sequences, encoded: Encoded) -> Tensor:
        target = self._sequences(target_input)
        visibility, memory_visibility = target.past(), target.translated(encoded.source)
        given = [(visibility, memory, memory_visibility) for memory in self._project_memories(encoded)]
        (result,) = self.decoder(self.target_embedding(target.ids, target.positions()), given)
        return result

    def start(self, encoded: Encoded, beam: int = 1, need_attention: bool = False) -> Cache:
        """A cache for `beam` hypotheses of each encoded (padded) sentence, nothing decoded yet."""
        source = encoded.source
        if not isinstance(source, PaddedSequences):
            raise TypeError("step by step decoding needs padded sources")
        stack = self.config.decoder
        head_shape = (stack.num_heads, stack.dim // stack.num_heads)
        empty = encoded.memories[0].new_zeros(len(source.ids) * beam, 0, *head_shape)
        past = [KeysValues(empty, empty)] * stack.num_layers
        memory = self._project_memories(encoded)
        return Cache(past, memory, source.padding, beam, length=0, need_attention=need_attention)

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """tokens: (rows,), the ids at the next position -> logits (rows, V) of the one after it; the grown cache."""
        growing = [GrowingVisibility(past) for past in cache.past]
        memory_visibility = BeamVisibility(cache.padding, cache.beam)
        last_visibility = BeamVisibility(cache.padding, cache.beam, need_weights=cache.need_attention)
        over_memory = [memory_visibility] * (len(growing) - 1) + [last_visibility]
        self._check_length(cache.length + 1)
        position = torch.tensor([cache.length], device=tokens.device)
        embedded = self.target_embedding(tokens.unsqueeze(1), position)
        (features,) = self.decoder(embedded, list(zip(growing, cache.memory, over_memory, strict=True)))
        grown = replace(
            cache,
            past=[visibility.seen for visibility in growing],
            length=cache.length + 1,
            attention=last_visibility.weights,
        )
        return self.project(features.squeeze(1)), grown

    def checkpoint_activations(self, on: bool = True) -> None:
        """Keep only the layers' inputs for the backward pass and compute the rest again."""
        self.encoder.checkpoints_activations = self.decoder.checkpoints_activations = on

    def _project_memories(self, encoded: Encoded) -> list[KeysValues]:
        layers = (layer for layer in self.decoder.layers if isinstance(layer, DecoderLayer))
        return [layer.cross_attention.project(memory) for layer, memory in zip(layers, encoded.memories, strict=True)]

    def _sequences(self, ids: Tensor | Sequences) -> Sequences:
        sequences = PaddedSequences(ids, self.config.pad_id) if isinstance(ids, Tensor) else ids
        self._check_length(sequences.max_length)
        return sequences

    def _check_length(self, length: int) -> None:
        if self.config.positions == "learned" and length > self.config.max_positions:
            raise ValueError(
                f"a sentence of {length} tokens is longer than max_positions = {self.config.max_positions}"
            )


def _embedding(config: ModelConfig, tokens: nn.Embedding) -> Embedding:
    first_position = config.pad_id + 1
    positions: nn.Module
    if config.positions == "learned":
        positions = LearnedPositions(config.max_positions + first_position, tokens.embedding_dim)
    else:
        positions = SinusoidalPositions(tokens.embedding_dim)
    return Embedding(tokens, positions, first_position, config.dropout)
