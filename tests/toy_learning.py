"""How the toy models of the tests learn their tasks in a few seconds."""

from collections.abc import Callable

import torch

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import EOS, PAD
from deepnmt.model.transformer import Transformer


def padded(sentences: list[list[int]]) -> torch.Tensor:
    width = max(map(len, sentences))
    return torch.tensor([ids + [PAD] * (width - len(ids)) for ids in sentences])


def teach(
    model: Transformer,
    tokenizers: TokenizerPair,
    pairs_at: Callable[[int], list[tuple[str, str]]],
    steps: int,
    rate: float,
    warmup: int,
) -> float:
    """Train on `pairs_at` each step, and return the last loss."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min((s + 1) / warmup, (1 - s / steps) + 0.02))
    for step in range(steps):
        pairs = pairs_at(step)
        source = padded([[*tokenizers.source.encode(text), EOS] for text, _ in pairs])
        targets = [tokenizers.target.encode(text) for _, text in pairs]
        logits = model(source, padded([[EOS, *ids] for ids in targets]))
        output = padded([[*ids, EOS] for ids in targets])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), output.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return loss.item()
