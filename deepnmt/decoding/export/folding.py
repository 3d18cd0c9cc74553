"""Schemes around a sub-layer that are pre-norm or post-norm but for a factor, which moves into the weights.

Layer scale is pre-norm with a factor on the last matrix of each branch; layer-norm scaling is pre-norm with one on the
norm. DeepNorm, LN(a x + F(x)), is post-norm LN(x + F(x) / a): a norm does not see the size of its input, but for its
epsilon. Other schemes stay as they are.
"""

from dataclasses import replace
from typing import Any

import torch

from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.layers import FeedForward, Layer
from deepnmt.model.sublayers.deepnorm import DeepNorm
from deepnmt.model.sublayers.layer_scale import LayerScale
from deepnmt.model.sublayers.post import PostNormConfig
from deepnmt.model.sublayers.pre import PreNormConfig
from deepnmt.model.sublayers.scaled import ScaledNorm
from deepnmt.model.sublayers.sublayer import Function, Sublayer
from deepnmt.model.transformer import Transformer

PLAIN: dict[str, Any] = {"layer-scale": PreNormConfig, "scaled": PreNormConfig, "deepnorm": PostNormConfig}


def folded_config(config: ModelConfig) -> ModelConfig:
    def plain(stack: StackConfig) -> StackConfig:
        kind = config.sublayer_of(stack).kind
        return replace(stack, sublayer=PLAIN[kind]()) if kind in PLAIN else stack

    return replace(config, encoder=plain(config.encoder), decoder=plain(config.decoder))


@torch.no_grad()
def folded(model: Transformer) -> Transformer:
    """A model of plain pre-norm and post-norm that computes the same; the model itself if there is nothing to fold."""
    config = folded_config(model.config)
    if config == model.config:
        return model
    plain = Transformer(config).eval()
    kept = plain.state_dict().keys()
    plain.load_state_dict({name: weight for name, weight in model.state_dict().items() if name in kept})
    for stack, original in ((plain.encoder, model.encoder), (plain.decoder, model.decoder)):
        for layer, scaled in zip(stack.layers, original.layers, strict=True):
            assert isinstance(layer, Layer) and isinstance(scaled, Layer)
            for (new, function), (around, _) in zip(layer.sublayers(), scaled.sublayers(), strict=True):
                _fold(new, function, around)
    return plain


def _fold(plain: Sublayer, function: Function, scheme: Sublayer) -> None:
    """Move the factor of a scheme into the norm or the function of its plain counterpart."""
    last = function.contract if isinstance(function, FeedForward) else function.output  # type: ignore[attr-defined]
    if isinstance(scheme, LayerScale):
        last.weight.mul_(scheme.weight[:, None])
        last.bias.mul_(scheme.weight)
    elif isinstance(scheme, DeepNorm):
        last.weight.div_(scheme.residual)
        last.bias.div_(scheme.residual)
    elif isinstance(scheme, ScaledNorm):
        for parameter in plain.norm.parameters():
            parameter.div_(scheme.get_buffer("layer").sqrt())
