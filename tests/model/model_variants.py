"""Every scheme that is listed, between layers and around sub-layers, with options, and tiny models made of them.

A scheme is tested the moment it stands in the table: the laws run over `CASES`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS, ConnectionConfig
from deepnmt.model.connections.attention_residual import AttentionResidualConfig
from deepnmt.model.connections.denseformer import DenseFormerConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.dynamic_dense import DynamicDenseConfig
from deepnmt.model.connections.hyper import HyperConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.connections.sparse_dlcl import SparseDlclConfig
from deepnmt.model.sublayers import SUBLAYERS, SublayerConfig
from deepnmt.model.sublayers.mix import MixConfig
from deepnmt.model.transformer import Transformer

DIM = 16
PAD, EOS = 1, 2

NORMS = ["pre", "post"]
STACKS = ["encoder", "decoder"]
VARIANTS: dict[str, ConnectionConfig] = {kind: scheme.Config() for kind, scheme in CONNECTIONS.items()} | {
    "dlcl-fixed-average": DlclConfig(learned=False),
    "dlcl-fixed-one": DlclConfig(learned=False, start="one"),
    "dlcl-no-norm": DlclConfig(norm=False),
    "dlcl-norm-embedding": DlclConfig(norm_embedding=True),
    "dlcl-softmax": DlclConfig(softmax=True),
    "dlcl-groups": DlclConfig(groups=4),
    "dlcl-per-dimension": DlclConfig(groups=DIM),
    "dlcl-window": DlclConfig(window=2),
    "dlcl-dropout": DlclConfig(dropout=0.1),
    "sparse-dlcl-blocks": SparseDlclConfig(block=2),
    "denseformer-sparse": DenseFormerConfig(dilation=2, period=2),
    "dynamic-dense-periodic": DynamicDenseConfig(period=3),  # encoder and decoder: after the last layer only
    "dynamic-dense-sparse": DynamicDenseConfig(dilation=2, period=2),
    "attention-residual-blocks": AttentionResidualConfig(blocks=2),
    "hyper-static": HyperConfig(streams=2, dynamic=False),
}
FOREIGN = {  # what models of other toolkits have
    "positions": "sinusoidal-hf",
    "first_position": 0,
    "activation": "swish",
    "scale_embeddings": False,
    "output_bias": True,
    "start_id": 0,
}
# What is around the sub-layers of both stacks. Each scheme meets the residual stack and DLCL.
SUBLAYER_VARIANTS: dict[str, SublayerConfig] = {kind: scheme.Config() for kind, scheme in SUBLAYERS.items()}
SUBLAYER_VARIANTS["mix"] = MixConfig(post_share=0.5)  # with a post-norm layer in each of these shallow stacks
POSITIONS: dict[str, dict[str, object]] = {
    "learned": {"positions": "learned"},
    "relative": {"positions": "relative", "max_distance": 2},
    "relative-keys": {"positions": "relative", "max_distance": 3, "relative_values": False},
    "rotary": {"positions": "rotary"},
}
OPTIONS: dict[str, dict[str, object]] = {
    "rms": {"norm_kind": "rms", "encoder": DlclConfig(), "decoder": DlclConfig()},
    "qk-norm": {"qk_norm": True},
}
PLAIN_CASES = [
    (variant, norm)
    for variant, config in VARIANTS.items()
    for norm in NORMS
    if norm == "pre" or not CONNECTIONS[config.kind].needs_branches
]
CASES = [(*case, stack) for case in PLAIN_CASES for stack in STACKS]
CASES += [("foreign", norm, "both") for norm in NORMS]
CASES += [
    case
    for kind in SUBLAYER_VARIANTS
    if kind not in NORMS
    for case in (("residual", kind, "encoder"), ("dlcl", kind, "encoder"), ("dlcl", kind, "decoder"))
]
CASES += [(positions, "pre", "both") for positions in POSITIONS]
CASES += [(option, norm, "both") for option in OPTIONS for norm in NORMS]
CASE_IDS = ["-".join(case) for case in CASES]


def tiny_config(
    encoder: ConnectionConfig | None = None, decoder: ConnectionConfig | None = None, **changes: object
) -> ModelConfig:
    """3 + 2 layers without dropout, one vocabulary of 14. `norm` is a scheme around sub-layers."""
    stack = StackConfig(num_layers=3, dim=DIM, ffn_dim=24, num_heads=4, connection=encoder or ResidualConfig())
    if (norm := changes.get("norm")) not in (None, *NORMS):
        stack = replace(stack, sublayer=SUBLAYER_VARIANTS[str(norm)])
        changes = {name: value for name, value in changes.items() if name != "norm"}
    settings: dict[str, object] = {
        "source_vocab_size": 14,
        "target_vocab_size": 14,
        "encoder": stack,
        "decoder": replace(stack, num_layers=2, connection=decoder or ResidualConfig()),
        "share_embeddings": True,
        "dropout": 0.0,
    }
    return ModelConfig(**settings | changes)  # type: ignore[arg-type]


def case_config(variant: str, norm: str, stack: str) -> ModelConfig:
    whole = POSITIONS | OPTIONS | {"foreign": FOREIGN}
    return tiny_config(norm=norm, **(whole.get(variant) or {stack: VARIANTS[variant]}))  # type: ignore[arg-type]


def scrambled(config: ModelConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> Transformer:
    """A model with nothing at a special value: biases, norms and mixture weights are moved from where they start."""
    torch.manual_seed(seed)
    model = Transformer(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sentences(*lengths: int, seed: int = 1) -> list[Tensor]:
    """Random ids of these lengths, no padding among them."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 14, (length,), generator=generator) for length in lengths]


def padded(lines: list[Tensor], extra: int = 0) -> Tensor:
    length = max(map(len, lines)) + extra
    return torch.stack([torch.cat([line, line.new_full((length - len(line),), PAD)]) for line in lines])
