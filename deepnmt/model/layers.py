"""The layers of the two stacks: attention and feed-forward, each with a scheme around it."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.attention import CrossAttention, KeysValues, SelfAttention, Visibility
from deepnmt.model.config import ModelConfig
from deepnmt.model.kernels.dropout import Dropout
from deepnmt.model.kernels.fused_layers import feed_forward, fuses_layers
from deepnmt.model.norms import NORMS
from deepnmt.model.positions import RelativePositions
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
        if self.is_plain and fuses_layers(x):
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


def places_of(config: ModelConfig, is_decoder: bool, number: int) -> list[Place]:
    """Those of the sub-layers of a layer, counted from 1.

    The i-th sub-layer of a stack is skipped with probability i / their number * P.
    """
    stack = config.decoder if is_decoder else config.encoder
    count = 3 if is_decoder else 2
    skip = stack.sublayer_dropout / (count * stack.num_layers)
    return [
        Place(
            dim=stack.dim,
            dropout=config.dropout,
            layer=number,
            num_encoder_layers=config.encoder.num_layers,
            num_decoder_layers=config.decoder.num_layers,
            is_decoder=is_decoder,
            is_cross_attention=is_decoder and i == 2,
            ends_layer=i == count,
            skip=skip * (count * (number - 1) + i),
            new_norm=partial(NORMS[config.norm_kind], eps=config.eps_of(stack)),
        )
        for i in range(1, count + 1)
    ]


class Layer(nn.Module):
    """Attention and feed-forward, each with its scheme around it; of the encoder or of the decoder."""

    is_decoder: bool

    def __init__(self, config: ModelConfig, number: int) -> None:
        """number: from 1"""
        super().__init__()
        stack = config.decoder if self.is_decoder else config.encoder
        scheme, places = config.sublayer_of(stack), places_of(config, self.is_decoder, number)
        new_sublayer = SUBLAYERS[scheme.kind]
        new_inner_norm = places[0].new_norm if new_sublayer.norms_inside else nn.Identity
        relative = None
        if config.positions == "relative":
            relative = RelativePositions(stack.head_dim, config.max_distance, config.relative_values)
        self.attention = SelfAttention(
            stack.dim, stack.num_heads, config.attention_dropout, new_inner_norm(stack.dim), relative, config.qk_norm
        )
        if self.is_decoder:
            self.cross_attention = CrossAttention(
                stack.dim, config.encoder.dim, stack.num_heads, config.attention_dropout, config.qk_norm
            )
        self.feed_forward = FeedForward(
            stack.dim, stack.ffn_dim, config.ffn_dropout, config.activation, inner_norm=new_inner_norm(stack.ffn_dim)
        )
        self.around_attention = new_sublayer(scheme, places[0])
        if self.is_decoder:
            self.around_cross_attention = new_sublayer(scheme, places[1])
        self.around_feed_forward = new_sublayer(scheme, places[-1])

    def sublayers(self) -> list[tuple[Sublayer, Function]]:
        """In the order in which they compute."""
        return [(self.around_attention, self.attention), (self.around_feed_forward, self.feed_forward)]


class EncoderLayer(Layer):
    is_decoder = False

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        """x: (..., dim) -> (..., dim)"""
        z = self.around_attention(x, lambda z: self.attention(z, visibility), x)
        return self.around_feed_forward(z, self.feed_forward, x)


class DecoderLayer(Layer):
    is_decoder = True

    def forward(self, x: Tensor, visibility: Visibility, memory: KeysValues, memory_visibility: Visibility) -> Tensor:
        """x: (..., dim) -> (..., dim); memory: the keys and values made of the encoder's result."""
        z = self.around_attention(x, lambda z: self.attention(z, visibility), x)
        z = self.around_cross_attention(z, lambda z: self.cross_attention(z, memory, memory_visibility), x)
        return self.around_feed_forward(z, self.feed_forward, x)

    def sublayers(self) -> list[tuple[Sublayer, Function]]:
        attention, feed_forward = super().sublayers()
        return [attention, (self.around_cross_attention, self.cross_attention), feed_forward]
