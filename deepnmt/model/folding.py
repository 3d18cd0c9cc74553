"""Folds schemes that are pre- or post-norm with additional factors into plain models with other weights.

Every engine can run the equivalent plain model. Each scheme has its own rule (`fold_into`); those without one stay as
they are.
"""

from dataclasses import replace

import torch

from deepnmt.model.config import SUBLAYER_CONFIGS, ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.layers import Layer, places_of
from deepnmt.model.storage import undrawn_model
from deepnmt.model.sublayers import SUBLAYERS, Sublayer
from deepnmt.model.transformer import Stack, Transformer


def folded_config(config: ModelConfig) -> ModelConfig:
    def plain(stack: StackConfig, is_decoder: bool) -> StackConfig:
        scheme = SUBLAYERS[config.sublayer_of(stack).kind]
        has_shortcuts = CONNECTIONS[stack.connection.kind].has_shortcuts
        if scheme.folds_into is None or (scheme.folds_through_norms and has_shortcuts):
            return stack
        eps = config.eps_of(stack)
        folded_eps = scheme.folded_eps(eps, places_of(config, is_decoder, number=1)[0])
        return replace(
            stack,
            sublayer=SUBLAYER_CONFIGS[scheme.folds_into](),
            norm_eps=stack.norm_eps if folded_eps == eps else folded_eps,
        )

    return replace(config, encoder=plain(config.encoder, False), decoder=plain(config.decoder, True))


@torch.no_grad()
def folded(model: Transformer) -> Transformer:
    """An equivalent plain model as far as possible; the model itself if there is nothing to fold."""
    config = folded_config(model.config)
    if config == model.config:
        return model
    plain = undrawn_model(config).to(model.output_weight).train(model.training)
    weights = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        parameter.copy_(weights[name])
    for stack in ("encoder", "decoder"):
        if getattr(config, stack) != getattr(model.config, stack):
            _fold(getattr(model, stack), getattr(plain, stack))
    return plain


def _fold(stack: Stack, plain: Stack) -> None:
    below: Sublayer | None = None
    for layer, plain_layer in zip(stack.layers, plain.layers, strict=True):
        assert isinstance(layer, Layer) and isinstance(plain_layer, Layer)
        for (scheme, _), (sublayer, function) in zip(layer.sublayers(), plain_layer.sublayers(), strict=True):
            scheme.fold_into(sublayer, function, below)
            below = sublayer
