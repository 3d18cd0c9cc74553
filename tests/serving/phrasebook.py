"""A phrase book of English and German, and a deep DLCL model that learns it: the smallest MODEL worth serving."""

import random
from collections import Counter
from functools import cache
from pathlib import Path

import torch
from toy_learning import teach

from deepnmt.data.learning import train
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.storage import save_model
from deepnmt.model.transformer import Transformer

THINGS = {
    "house": "das Haus", "garden": "der Garten", "river": "der Fluss", "city": "die Stadt", "book": "das Buch",
    "window": "das Fenster", "street": "die Straße", "tree": "der Baum", "lamp": "die Lampe", "child": "das Kind",
}  # fmt: skip
QUALITIES = {
    "old": "alt", "small": "klein", "quiet": "still", "bright": "hell", "new": "neu",
    "beautiful": "schön", "green": "grün", "warm": "warm",
}  # fmt: skip
VERBS = {"is": "ist", "was": "war", "stays": "bleibt", "seems": "scheint"}
ENDS = {"": "", " today": " heute", " again": " wieder", " in summer": " im Sommer"}


def phrases(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        thing, quality, verb, end = (rng.choice(list(table)) for table in (THINGS, QUALITIES, VERBS, ENDS))
        german = THINGS[thing]
        source = f"The {thing} {verb}{end} {quality}."
        target = f"{german[0].upper()}{german[1:]} {VERBS[verb]}{ENDS[end]} {QUALITIES[quality]}."
        pairs.append((source, target))
    return pairs


@cache
def phrase_tokenizers() -> TokenizerPair:
    words: Counter[str] = Counter()
    for pair in phrases(600, seed=0):
        for text in pair:
            words.update(text.split())
    model = train(dict(words), SubwordSettings(character_coverage=1.0), vocab_size=420)
    return TokenizerPair(*(Tokenizer(SentencePieces(model), Preprocessor(language)) for language in ("en", "de")))


def phrase_model(tokenizers: TokenizerPair, dim: int = 32, layers: int = 12) -> Transformer:
    torch.manual_seed(1)
    stack = {"dim": dim, "ffn_dim": 2 * dim, "num_heads": 4, "connection": DlclConfig()}
    config = ModelConfig(
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        share_embeddings=True,
        dropout=0.0,
        encoder=StackConfig(**stack, num_layers=layers),
        decoder=StackConfig(**stack, num_layers=2),
    )
    return Transformer(config)


def make_model(folder: Path, steps: int = 120, dim: int = 32, layers: int = 12) -> float:
    tokenizers = phrase_tokenizers()
    model = phrase_model(tokenizers, dim, layers)
    loss = teach(model, tokenizers, lambda step: phrases(48, seed=step + 1), steps, rate=5e-3, warmup=20)
    save_model(folder, model.eval())
    tokenizers.save(folder)
    return loss
