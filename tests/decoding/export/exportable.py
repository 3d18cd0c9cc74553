"""Models for the formats: random ones of many shapes, and small residual ones that end their sentences."""

import re
from pathlib import Path

import torch
from digits import digit_tokenizers, reversed_digits
from toy_learning import teach

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.storage import save_model
from deepnmt.model.transformer import Transformer

ROOT = Path(__file__).parents[3]


def random_model(dims=(16, 16), heads=(4, 2), connections=(None, None), sublayer=None, **settings) -> Transformer:
    """For the vocabulary of the digits. Nothing is at a special value, so that every weight matters."""
    torch.manual_seed(0)
    stacks = {
        side: StackConfig(
            num_layers=layers,
            dim=dim,
            ffn_dim=20,
            num_heads=num_heads,
            connection=connection or ResidualConfig(),
            sublayer=sublayer,
        )
        for side, layers, num_heads, dim, connection in zip(
            ("encoder", "decoder"), (2, 1), heads, dims, connections, strict=True
        )
    }
    config = {"source_vocab_size": 57, "target_vocab_size": 57, **stacks, **settings}
    model = Transformer(ModelConfig(**config)).eval()
    with torch.no_grad():
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def unsure_model(dim: int = 32, **settings) -> Transformer:
    """Trained so shortly that it ends its sentences and is sure of nothing else, which is hard on a search."""
    torch.manual_seed(1)
    stack = StackConfig(num_layers=1, dim=dim, ffn_dim=dim, num_heads=4)
    sizes = {"source_vocab_size": 57, "target_vocab_size": 57}
    model = Transformer(
        ModelConfig(**sizes, share_embeddings=True, dropout=0.0, encoder=stack, decoder=stack, **settings)
    )
    teach(
        model,
        digit_tokenizers(),
        lambda step: reversed_digits(12, seed=step, longest=3),
        steps=100,
        rate=3e-3,
        warmup=40,
    )
    return model.eval()


def examples(heading: str, language: str = "python") -> list[str]:
    """The code under a heading of docs/export.md."""
    sections = (ROOT / "docs" / "export.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = (section for section in sections if section.startswith(heading + "\n"))
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def save(folder: Path, model: Transformer, tokenizers: TokenizerPair | None = None) -> Path:
    save_model(folder, model)
    (tokenizers or digit_tokenizers()).save(folder)
    return folder
