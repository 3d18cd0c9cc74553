"""A deeper model from a shallow one, by repeating the top layers of the encoder on top of it.

Li et al. 2020, Shallow-to-Deep Training for Neural Machine Translation, https://arxiv.org/abs/2010.03737
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from deepnmt.model.config import ModelConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer


def with_encoder_depth(config: ModelConfig, num_layers: int) -> ModelConfig:
    """The config with an encoder of this depth."""
    return replace(config, encoder=replace(config.encoder, num_layers=num_layers))


def check_growth(config: ModelConfig, depths: Sequence[int]) -> None:
    """Raise ValueError if an encoder cannot have these successive depths."""
    connection, sublayer = config.encoder.connection.kind, config.sublayer_of(config.encoder).kind
    if not CONNECTIONS[connection].grows:
        able = ", ".join(kind for kind, scheme in CONNECTIONS.items() if scheme.grows)
        raise ValueError(f"training.grow does not support encoder.connection = {connection!r}; use one of {able}")
    config.encoder.connection.check_growth(depths)
    if not SUBLAYERS[sublayer].grows:
        able = ", ".join(kind for kind, scheme in SUBLAYERS.items() if scheme.grows)
        raise ValueError(
            f"training.grow does not support encoder.sublayer = {sublayer!r}, which depends on the depth; use one of "
            f"{able}"
        )


@torch.no_grad()
def deepened(model: Transformer, num_layers: int) -> Transformer:
    """A new model on the same device. Its encoder's layer l is layer l of the shallow one, or the one `added` below."""
    deep = Transformer(with_encoder_depth(model.config, num_layers)).to(model.output_weight.device)
    shallow, depth = dict(model.named_parameters()), len(model.encoder.layers)
    for name, parameter in deep.named_parameters():
        if not name.startswith("encoder.connection."):
            parameter.copy_(shallow[_origin(name, depth, added=num_layers - depth)])
    deep.encoder.connection.grow_from(model.encoder.connection)
    return deep.train(model.training)


def _origin(name: str, depth: int, added: int) -> str:
    found = re.match(r"encoder\.layers\.(\d+)\.(.*)", name)
    if found is None or int(found[1]) < depth:
        return name
    return f"encoder.layers.{int(found[1]) - added}.{found[2]}"
