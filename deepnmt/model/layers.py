"""The layers of the two stacks: attention and feed-forward, each with a scheme around it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.attention import CrossAttention, KeysValues, SelfAttention, Visibility
from deepnmt.model.config import ModelConfig
from deepnmt.model.kernels.dropout import Dropout
from deepnmt.model.kernels.passes import feed_forward, fits_passes
from deepnmt.model.norms import NORMS
from deepnmt.model.positions import RelativePositions
from deepnmt.model.skipping import Skip
from deepnmt.model.sublayers import SUBLAYERS, Place, Sublayer
from deepnmt.model.sublayers.sublayer import Function

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "swish": F.silu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """W2 f(W1 x); with swiglu, W2 (silu(W1 x) * V1 x), where W1 and V1 are one packed matrix."""

    def __init__(
        self, dim: int, ffn_dim: int, dropout: float, activation: str, inner_norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.gated = activation == "swiglu"
        self.activation = ACTIVATIONS[activation]
        self.expand = nn.Linear(dim, 2 * ffn_dim if self.gated else ffn_dim)
        self.contract = nn.Linear(ffn_dim, dim)
        self.dropout = Dropout(dropout)
        self.inner_norm = inner_norm or nn.Identity()
        self.is_plain = activation == "relu" and isinstance(self.inner_norm, nn.Identity) and ffn_dim % 8 == 0

    def forward(self, x: Tensor) -> Tensor:
        if self.is_plain and fits_passes(x):
            return feed_forward(x, self.expand, self.contract, self.dropout.p if self.training else 0.0)
        x = self.expand(x)
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            x = self.activation(gate) * x
        else:
            x = self.activation(x)
        return self.contract(self.inner_norm(self.dropout(x)))

    def branch_weights(self) -> list[Tensor]:
        return [self.expand.weight, self.contract.weight]

    def ends(self) -> tuple[nn.Linear, nn.Linear]:
        return self.expand, self.contract


def place_of(config: ModelConfig, is_decoder: bool, number: int) -> Place:
    """That of the first sub-layer of a layer, counted from 1."""
    stack, new_norm = config.decoder if is_decoder else config.encoder, NORMS[config.norm_kind]
    return Place(
        dim=stack.dim,
        dropout=config.dropout,
        layer=number,
        num_encoder_layers=config.encoder.num_layers,
        num_decoder_layers=config.decoder.num_layers,
        is_decoder=is_decoder,
        new_norm=new_norm if stack.norm_eps is None else partial(new_norm, eps=stack.norm_eps),
    )


class Layer(nn.Module):
    """Attention and feed-forward, each with its scheme around it; of the encoder or of the decoder."""

    is_decoder: bool

    def __init__(self, config: ModelConfig, number: int) -> None:
        """number: from 1"""
        super().__init__()
        is_decoder = self.is_decoder
        stack = config.decoder if is_decoder else config.encoder
        scheme = config.sublayer_of(stack)
        around, place = SUBLAYERS[scheme.kind], place_of(config, is_decoder, number)
        new_inner_norm = place.new_norm if around.norms_inside else nn.Identity
        relative = None
        if config.positions == "relative":
            relative = RelativePositions(stack.head_dim, config.max_distance, config.relative_values)
        self.attention = SelfAttention(
            stack.dim, stack.num_heads, config.attention_dropout, new_inner_norm(stack.dim), relative, config.qk_norm
        )
        if is_decoder:
            self.cross_attention = CrossAttention(
                stack.dim, config.encoder.dim, stack.num_heads, config.attention_dropout, config.qk_norm
            )
        self.feed_forward = FeedForward(
            stack.dim, stack.ffn_dim, config.ffn_dropout, config.activation, inner_norm=new_inner_norm(stack.ffn_dim)
        )
        self.around_attention = around(scheme, place)
        if is_decoder:
            self.around_cross_attention = around(scheme, replace(place, is_cross_attention=True))
        self.around_feed_forward = around(scheme, replace(place, ends_layer=True))
        count = 3 if is_decoder else 2
        # The i-th sub-layer of the stack is skipped with probability i / their number * P: the higher, the oftener.
        step = stack.sublayer_dropout / (count * stack.num_layers)
        skips = [Skip(step * (count * (number - 1) + i)) for i in range(1, count + 1)]
        self.skip_attention, self.skip_feed_forward = skips[0], skips[-1]
        if is_decoder:
            self.skip_cross_attention = skips[1]

    def sublayers(self) -> list[tuple[Sublayer, Function]]:
        """In the order in which they compute."""
        return [(self.around_attention, self.attention), (self.around_feed_forward, self.feed_forward)]


class EncoderLayer(Layer):
    is_decoder = False

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        """x: (..., dim) -> (..., dim)"""
        z = self.around_attention(x, self.skip_attention(lambda z: self.attention(z, visibility)), x)
        return self.around_feed_forward(z, self.skip_feed_forward(self.feed_forward), x)


class DecoderLayer(Layer):
    is_decoder = True

    def forward(self, x: Tensor, visibility: Visibility, memory: KeysValues, memory_visibility: Visibility) -> Tensor:
        """x: (..., dim) -> (..., dim); memory: the keys and values made of the encoder's result."""
        z = self.around_attention(x, self.skip_attention(lambda z: self.attention(z, visibility)), x)
        attend = self.skip_cross_attention(lambda z: self.cross_attention(z, memory, memory_visibility))
        z = self.around_cross_attention(z, attend, x)
        return self.around_feed_forward(z, self.skip_feed_forward(self.feed_forward), x)

    def sublayers(self) -> list[tuple[Sublayer, Function]]:
        attention, feed_forward = super().sublayers()
        return [attention, (self.around_cross_attention, self.cross_attention), feed_forward]
