"""The task of the decoding tests: spelled-out digits, translated by reversing them."""

import random

import torch

from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SentencePieces, train
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import EOS, PAD
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.transformer import Transformer

WORDS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def digit_tokenizers() -> TokenizerPair:
    settings = SubwordSettings(subwords="bpe", byte_fallback=False, character_coverage=1.0)
    model = train(dict.fromkeys(WORDS, 5) | {".": 9}, settings, vocab_size=57)
    return TokenizerPair(*(Tokenizer(SentencePieces(model), Preprocessor(language)) for language in ("de", "en")))


def reversed_digits(count: int, seed: int, longest: int = 6) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    sentences = [[rng.choice(WORDS) for _ in range(rng.randint(1, longest))] for _ in range(count)]
    return [(" ".join(words), " ".join(reversed(words))) for words in sentences]


def tiny_model(tokenizers: TokenizerPair, seed: int = 1, tie_output: bool = True) -> Transformer:
    torch.manual_seed(seed)
    size = tokenizers.source.vocab_size
    stack = {"dim": 64, "ffn_dim": 128, "num_heads": 4, "num_layers": 2}
    config = ModelConfig(
        source_vocab_size=size,
        target_vocab_size=size,
        share_embeddings=True,
        tie_output=tie_output,
        dropout=0.0,
        encoder=StackConfig(**stack, connection=DlclConfig()),
        decoder=StackConfig(**stack),
    )
    return Transformer(config)


def padded(sentences: list[list[int]]) -> torch.Tensor:
    width = max(map(len, sentences))
    return torch.tensor([ids + [PAD] * (width - len(ids)) for ids in sentences])


def train_tiny(model: Transformer, tokenizers: TokenizerPair, steps: int, batch: int = 64, longest: int = 6) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min((s + 1) / 40, (1 - s / steps) + 0.02))
    for step in range(steps):
        pairs = reversed_digits(batch, seed=step, longest=longest)
        source = padded([[*tokenizers.source.encode(text), EOS] for text, _ in pairs])
        targets = [tokenizers.target.encode(text) for _, text in pairs]
        logits = model(source, padded([[EOS, *ids] for ids in targets]))
        output = padded([[*ids, EOS] for ids in targets])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), output.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
