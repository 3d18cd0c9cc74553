"""The task of the decoding tests: spelled-out digits, translated by reversing them."""

import random

import torch
from toy_learning import teach

from deepnmt.data.learning import train
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
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


def train_tiny(model: Transformer, tokenizers: TokenizerPair, steps: int) -> None:
    teach(model, tokenizers, lambda step: reversed_digits(64, seed=step), steps, rate=3e-3, warmup=40)
