"""The encoder-decoder Transformer: one loop per stack for all sub-layer schemes and connections."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from deepnmt.model.attention import KeysValues, Visibility
from deepnmt.model.cache import Cache, MemoryVisibility, PastVisibility
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS, Connection, StackShape
from deepnmt.model.embedding import Embedding
from deepnmt.model.initialization import initialize
from deepnmt.model.kernels.dropout import dealing, draw_seeds
from deepnmt.model.layers import DecoderLayer, EncoderLayer
from deepnmt.model.norms import NORMS
from deepnmt.model.positions import Rotation
from deepnmt.model.sequences import PaddedSequences, Sequences
from deepnmt.model.skipping import LayerDrop
from deepnmt.model.sublayers import SUBLAYERS


class Stack(nn.Module):
    """Layers and the connection between them. Pre-norm layers need a final norm on top."""

    def __init__(self, layers: list[nn.Module], config: ModelConfig, stack: StackConfig, num_readers: int) -> None:
        super().__init__()
        around, new_norm = SUBLAYERS[config.sublayer_of(stack).kind], NORMS[config.norm_kind]
        shape = StackShape(
            num_layers=stack.num_layers,
            dim=stack.dim,
            norm=around.placement,
            num_readers=num_readers,
            new_norm=new_norm,
        )
        self.embedding_norm = new_norm(stack.dim) if around.norms_embedding else nn.Identity()
        self.layers = nn.ModuleList(layers)
        self.connection: Connection = CONNECTIONS[stack.connection.kind](stack.connection, shape)
        norms_result = around.placement == "pre" and around.norms_result
        self.final_norm = new_norm(stack.dim, eps=config.eps_of(stack)) if norms_result else nn.Identity()
        self.layer_drop = LayerDrop(stack.layer_dropout)
        self.checkpoints_activations = False

    def forward(self, x: Tensor, arguments: list[tuple[Any, ...]]) -> list[Tensor]:
        """x: the embedding y_0; arguments: what each layer is given besides its input. Returns the stack's memories."""
        connection, history = self.connection, self.connection.begin()
        connection.write(history, self.embedding_norm(x))
        draws = self.training and x.is_cuda
        drawn = draw_seeds(len(self.layers), x.device) if draws else [None] * len(self.layers)
        for layer, given, seeds in zip(self.layers, arguments, drawn, strict=True):
            connection.write(history, self._run(layer, connection.read(history), given, seeds))
        return [self.final_norm(memory) for memory in connection.memories(history)]

    def _run(self, layer: nn.Module, x: Tensor, given: tuple[Any, ...], seeds: Tensor | None) -> Tensor:
        def compute(x: Tensor) -> Tensor:
            with dealing(seeds):
                result: Tensor = layer(x, *given)
            return result

        if self.checkpoints_activations and self.training:
            return self.layer_drop(partial(checkpoint, compute, use_reentrant=False), x)
        return self.layer_drop(compute, x)


@dataclass(frozen=True)
class Encoded:
    """The encoder's result: a memory for each decoder layer, and its visibility."""

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
        self.source_embedding = Embedding(config, source_tokens)
        self.target_embedding = Embedding(config, target_tokens, config.start_id)

        num_decoder_layers = config.decoder.num_layers
        encoder_layers: list[nn.Module] = [EncoderLayer(config, k + 1) for k in range(config.encoder.num_layers)]
        decoder_layers: list[nn.Module] = [DecoderLayer(config, k + 1) for k in range(num_decoder_layers)]
        self.encoder = Stack(encoder_layers, config, config.encoder, num_readers=num_decoder_layers)
        self.decoder = Stack(decoder_layers, config, config.decoder, num_readers=1)
        self.output = None if config.tie_output else nn.Embedding(config.target_vocab_size, config.decoder.dim)
        self.output_bias = nn.Parameter(torch.zeros(config.target_vocab_size)) if config.output_bias else None
        self.rotates, self.is_relative = config.positions == "rotary", config.positions == "relative"
        initialize(self)

    @property
    def output_weight(self) -> Tensor:
        """(V, decoder dim); `output_bias` is (V,), or None."""
        table = self.target_embedding.tokens if self.output is None else self.output
        return table.weight

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """source: (B, S), target_input: (B, T) ids, padded at the end -> logits (B, T, V)"""
        return self.project(self.features(source, target_input))

    def features(self, source: Tensor | Sequences, target_input: Tensor | Sequences) -> Tensor:
        """The decoder's result before the output projection: (B, T, dim)."""
        return self.decode(target_input, self.encode(source))

    def project(self, features: Tensor) -> Tensor:
        return F.linear(features, self.output_weight, self.output_bias)

    def encode(self, source: Tensor | Sequences) -> Encoded:
        sequences = self._sequences(source)
        positions = sequences.positions()
        visibility = sequences.whole()
        visibility.rotation = self._rotation(positions, self.config.encoder)
        embedded = self.source_embedding(sequences.ids, positions)
        memories = self.encoder(embedded, [(visibility,)] * len(self.encoder.layers))
        if len(memories) == 1:
            memories = memories * self.config.decoder.num_layers
        return Encoded(memories, sequences)

    def decode(
        self, target_input: Tensor | Sequences, encoded: Encoded, over_memory: Visibility | None = None
    ) -> Tensor:
        target = self._sequences(target_input)
        positions, visibility = target.positions(), target.past()
        over_memory = over_memory or target.translated(encoded.source)
        visibility.rotation = self._rotation(positions, self.config.decoder)
        given = [(visibility, memory, over_memory) for memory in self.project_memories(encoded)]
        (result,) = self.decoder(self.target_embedding(target.ids, positions), given)
        return result

    def start(self, encoded: Encoded, beam: int = 1, families: int = 1) -> Cache:
        """A cache for `families` times `beam` hypotheses of each encoded (padded) sentence, nothing decoded yet."""
        if not isinstance(encoded.source, PaddedSequences):
            raise TypeError("incremental decoding needs padded sources")
        memory, padding = self.project_memories(encoded), encoded.source.padding
        return Cache.empty(memory, padding, beam, families, has_places=self.is_relative)

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """tokens: (rows,), the ids at the next position -> logits (rows, V) of the one after it; the grown cache."""
        features, cache = self.step_features(tokens, cache)
        return self.project(features), cache

    def step_features(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """The step before the output projection: (rows, dim)."""
        self._check_length(cache.length + 1)
        position = torch.tensor([cache.length], device=tokens.device)
        rotation = self._rotation(position, self.config.decoder)
        cache = cache.compact().with_next_slots()
        over_past, over_memory = [PastVisibility(past, cache) for past in cache.past], MemoryVisibility(cache)
        for visibility in over_past:
            visibility.rotation = rotation
        given = [(past, memory, over_memory) for past, memory in zip(over_past, cache.memory, strict=True)]
        (features,) = self.decoder(self.target_embedding(tokens, position), given)
        return features, replace(cache, past=[visibility.past for visibility in over_past])

    def checkpoint_activations(self, on: bool = True) -> None:
        """Keep only the layers' inputs for the backward pass and recompute the rest."""
        self.encoder.checkpoints_activations = self.decoder.checkpoints_activations = on

    def project_memories(self, encoded: Encoded) -> list[KeysValues]:
        """The keys and values of the source for each decoder layer: (B, S, heads, head_dim)"""
        layers = (layer for layer in self.decoder.layers if isinstance(layer, DecoderLayer))
        return [layer.cross_attention.project(memory) for layer, memory in zip(layers, encoded.memories, strict=True)]

    def _rotation(self, positions: Tensor, stack: StackConfig) -> Rotation | None:
        return Rotation.at(positions, stack.head_dim) if self.rotates else None

    def _sequences(self, ids: Tensor | Sequences) -> Sequences:
        if not isinstance(ids, Tensor):
            return ids  # lengths of packed sentences are on the device; training checks them when it opens the data
        self._check_length(ids.shape[1])
        return PaddedSequences(ids, self.config.pad_id)

    def _check_length(self, length: int) -> None:
        limit = self.config.position_limit
        if limit is not None and length > limit:
            raise ValueError(f"a sentence of {length} tokens is longer than max_positions = {limit}")
