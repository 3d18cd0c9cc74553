"""The size of each part of a model and its cost per token, from the config, without allocating the model."""

from dataclasses import dataclass

from torch import Tensor

from deepnmt.columns import ShownAsText, aligned
from deepnmt.model.config import ModelConfig
from deepnmt.model.storage import undrawn_model


@dataclass(frozen=True)
class Part:
    """`flops`: of its matrix products, forward, for one source and one target token."""

    stack: str
    name: str
    parameters: int
    flops: int


@dataclass(frozen=True)
class ModelSize(ShownAsText):
    """A model of this config, part by part."""

    name: str
    config: ModelConfig
    parts: list[Part]

    @property
    def total(self) -> Part:
        parameters, flops = (sum(getattr(part, name) for part in self.parts) for name in ("parameters", "flops"))
        return Part("total", "", parameters, flops)

    def __str__(self) -> str:
        whole, rows, before = self.total, [["", "part", "parameters", "share", "MFLOP/token"]], ""
        for part in (*self.parts, whole):
            share = f"{part.parameters / whole.parameters:.1%}" if part.parameters else ""
            stack, before = "" if part.stack == before else part.stack, part.stack
            flops = _mega(part.flops) if part.flops else ""
            rows.append([stack, part.name, f"{part.parameters:,}", share, flops])
        note = (
            "MFLOP/token: matrix products with the weights, forward, for a source and a\n"
            f"target token. A training step costs three times that, {_mega(3 * whole.flops)}."
        )
        return f"{self.name}: {describe(self.config)}\n\n{aligned(rows, slice(2, None))}\n\n{note}"


def _mega(number: int) -> str:
    return f"{number / 1e6:,.1f}" if number >= 1e6 else f"{number / 1e6:.3f}"


def describe(config: ModelConfig) -> str:
    """The scheme around sub-layers, of each stack if the two differ, and a line for each stack."""
    kinds = {name: config.sublayer_of(stack).kind for name, stack in config.stacks.items()}
    schemes = {name: f"{kind}-norm" if kind == config.norm else kind for name, kind in kinds.items()}
    common = set(schemes.values())
    lines = [", ".join(common if len(common) == 1 else (f"{scheme} {name}" for name, scheme in schemes.items()))]
    for name, stack in config.stacks.items():
        size = f"width {stack.dim}, ffn {stack.ffn_dim}, {_count(stack.num_heads, 'head')}"
        lines.append(f"{name:<8} {_count(stack.num_layers, 'layer')}, {stack.connection.kind}, {size}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_OF_LAYERS = {
    "attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
    "around_attention": "norms",
    "around_cross_attention": "norms",
    "around_feed_forward": "norms",
}
_ORDER = ["self-attention", "cross-attention", "feed-forward", "norms", "connection"]


def measure(config: ModelConfig) -> list[Part]:
    """Count every parameter once; a shared table counts for its first use."""
    model = undrawn_model(config, allocate=False)
    counted = [_part(config, name, parameter) for name, parameter in model.named_parameters()]
    output_flops = 2 * config.target_vocab_size * config.decoder.dim
    if config.tie_output:
        counted.append(Part("output", "projection (tied)", 0, output_flops))
    return _sum(counted)


def _part(config: ModelConfig, name: str, parameter: Tensor) -> Part:
    size = parameter.numel()
    root, *path = name.split(".")
    if root in ("output", "output_bias"):
        return Part("output", "projection" if path else "bias", size, 2 * size if path else 0)
    if root not in ("encoder", "decoder"):
        side = "source and target" if config.share_embeddings else root.removesuffix("_embedding")
        used = side if path[0] == "tokens" else f"{path[0]}, {root.removesuffix('_embedding')}"
        return Part("embedding", used, size, 0)
    if path[0] == "layers":
        return Part(root, _OF_LAYERS[path[2]], size, 2 * size if parameter.dim() == 2 else 0)
    return Part(root, "norms" if path[0] == "final_norm" else path[0], size, 0)


def _sum(parts: list[Part]) -> list[Part]:
    sums: dict[tuple[str, str], Part] = {}
    for part in parts:
        key = part.stack, part.name
        before = sums.get(key, Part(*key, 0, 0))
        sums[key] = Part(*key, before.parameters + part.parameters, before.flops + part.flops)
    stacks = ["embedding", "encoder", "decoder", "output"]
    return sorted(
        sums.values(), key=lambda part: (stacks.index(part.stack), part.name in _ORDER and _ORDER.index(part.name))
    )
