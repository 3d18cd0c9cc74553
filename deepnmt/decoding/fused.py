"""The decoder's step on a GPU in few kernels, over slots whose sentences are each at their own position."""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepnmt.decoding.config import SlotShape
from deepnmt.decoding.kernels.beams_triton import BeamState, advance
from deepnmt.decoding.kernels.step_triton import attend_memory, attend_past, embed, join
from deepnmt.decoding.prepared import PreparedModel
from deepnmt.decoding.search import penalty_table
from deepnmt.model.attention import KeysValues
from deepnmt.model.layers import DecoderLayer
from deepnmt.model.positions import Rotation
from deepnmt.model.sublayers import Sublayer


class FusedStep:
    """The buffers of a shape, and `step`, which advances every unfinished sentence by one position."""

    @torch.inference_mode()
    def __init__(self, prepared: PreparedModel, shape: SlotShape, eos: int) -> None:
        self.prepared, self.shape, self.eos = prepared, shape, eos
        self.pre = prepared.model.config.sublayer_of(prepared.model.config.decoder).kind == "pre"
        model, config = prepared.model, shape.config
        weight, stack = model.output_weight, model.config.decoder
        self.layers = [layer for layer in model.decoder.layers if isinstance(layer, DecoderLayer)]
        self.state = BeamState.empty(shape.sentences, shape.target_length, config, weight.device)
        each = (stack.num_layers, 2, shape.sentences)
        heads = (stack.num_heads, stack.head_dim)
        self.slots = weight.new_empty(*each, shape.target_length, config.beam, *heads)
        self.memory = weight.new_zeros(*each, shape.source_length, *heads)
        self.source_lengths = torch.ones(shape.sentences, dtype=torch.int32, device=weight.device)
        self.history = weight.new_empty(stack.num_layers + 1, shape.sentences * config.beam, stack.dim)
        mixture = model.decoder.connection.mixture()
        assert mixture is not None
        matrix, self.norms = mixture.matrix, mixture.norms
        self.matrix = None if matrix is None else matrix[:, :, 0].to(weight.device).contiguous()
        self.penalties = penalty_table(config, shape.target_length + 1, weight.device)
        allowed = torch.ones(len(weight), dtype=torch.int8, device=weight.device)
        allowed[[eos, *shape.banned]] = 0
        self.allowed = allowed
        embedding = model.target_embedding
        last = min(shape.target_length, model.config.position_limit or shape.target_length)
        places = torch.arange(last, device=weight.device)
        self.positions = weight.new_zeros(last, stack.dim)
        if embedding.positions is not None:
            self.positions = embedding.positions(places + embedding.first_position).contiguous()
        self.rotation = Rotation.at(places, stack.head_dim) if model.rotates else None

    def put(self, slots: Tensor, memory: Tensor, limits: Tensor) -> None:
        """Start sentences in these slots (n,).

        memory: (layers, 2, n, S, heads, head_dim); limits: (3, n), source length, opening and maximum length
        """
        lengths, openings, max_lengths = limits
        self.memory[:, :, slots, : memory.shape[3]] = memory
        self.source_lengths[slots] = lengths
        start = self.prepared.model.target_embedding.start_id
        self.state.begin(slots, openings, max_lengths, self.eos if start is None else start)

    @torch.inference_mode()
    def step(self) -> None:
        shape = self.shape
        logits = self.prepared.project(self._features())
        advance(self.state, logits, self.allowed, self.penalties, shape.config, self.eos, shape.min_length)

    def _features(self) -> Tensor:
        """The same as `Stack` and `DecoderLayer`, grouped differently: one kernel for all between two products.
        Of the two tensors passed on, sub-layers add to the first and compute with the second."""
        embedding, state, beam = self.prepared.model.target_embedding, self.state, self.shape.config.beam
        x = embed(state.last, state.position, embedding.tokens.weight, self.positions, embedding.scale, beam)
        stream, given = self._arrive(0, x, None)
        for depth, layer in enumerate(self.layers):
            attended = self._attend_past(depth, layer, given)
            stream, given = self._add(stream, attended, layer.around_attention, layer.around_cross_attention)
            attended = self._attend_memory(depth, layer, given)
            stream, given = self._add(stream, attended, layer.around_cross_attention, layer.around_feed_forward)
            stream, given = self._arrive(depth + 1, stream, _feed_forward(layer, given))
        return given

    def _add(self, x: Tensor, y: Tensor, around: Sublayer, following: Sublayer) -> tuple[Tensor, Tensor]:
        """The end of a sub-layer: pre-norm adds, then norms for the next one; post-norm norms the sum."""
        if self.pre:
            return join(x, y, next_norm=following.norm)
        return _both(join(x, y, next_norm=around.norm))

    def _arrive(self, depth: int, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """The end of layer `depth` (0: the embedding), and the connection before the next one."""
        following = self.prepared.model.decoder.final_norm
        if depth < len(self.layers):
            following = self.layers[depth].around_attention.norm
        ends = self.layers[depth - 1].around_feed_forward.norm if depth else None
        if self.matrix is None:
            return join(x, y, next_norm=following) if self.pre else _both(join(x, y, next_norm=ends))
        norm, mixture = self.norms[depth], (self.history, self.matrix, depth)
        if self.pre:
            return join(x, y, norm=norm, mixture=mixture, next_norm=following)
        return _both(join(x, y, norm=ends if depth else norm, mixture=mixture, next_norm=norm))

    def _attend_past(self, depth: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        state, slots = self.state, KeysValues(*self.slots[depth])
        projected = layer.attention.project(x)
        if self.rotation is not None:
            place = state.position.repeat_interleave(self.shape.config.beam)
            rotation = Rotation(*(part[place] for part in self.rotation))
            projected = rotation.turn_projected(projected)
        relative = layer.attention.relative
        attended = attend_past(projected.flatten(-3), slots, state.lineage, state.position, state.done, relative)
        return layer.attention.output(attended)

    def _attend_memory(self, depth: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        memory = KeysValues(*self.memory[depth])
        query = layer.cross_attention.queries(x).flatten(-2)
        return layer.cross_attention.output(attend_memory(query, memory, self.source_lengths, self.shape.config.beam))


def _both(flowing: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Post-norm adds to what it computes with."""
    return flowing[1], flowing[1]


def _feed_forward(layer: DecoderLayer, x: Tensor) -> Tensor:
    part = layer.feed_forward
    if part.gated or part.activation is not F.relu:
        return part(x)
    # The product with its bias and the relu in one kernel.
    expanded = torch._addmm_activation(part.expand.bias, x, part.expand.weight.t())
    return part.contract(expanded)
