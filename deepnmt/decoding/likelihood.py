"""The probability of given translations, subword by subword (forced decoding)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import EOS
from deepnmt.decoding.pieces import batched, padded
from deepnmt.decoding.prepared import PreparedModel
from deepnmt.errors import InputError

BATCH_TOKENS = 2048  # bounds the memory of the logits


@dataclass(frozen=True)
class Likelihood:
    """The subwords of a translation, the last of which is its end, and the log probability (in nats) of each."""

    pieces: list[str]
    log_probs: list[float]

    @property
    def log_prob(self) -> float:
        return sum(self.log_probs)


@torch.inference_mode()
def likelihoods(
    prepared: PreparedModel,
    pair: TokenizerPair,
    sources: Sequence[str],
    targets: Sequence[str],
    max_positions: int,
    done: Callable[[int], None],
) -> list[Likelihood]:
    """The likelihood of each target given its source; the tag of a target language costs nothing."""
    opening, device = len(pair.target.opening()), prepared.model.output_weight.device
    ids = zip(pair.source.encode_batch(sources), pair.target.encode_batch(targets), strict=True)
    encoded = [([*source, *pair.source.ending], [EOS, *target, EOS]) for source, target in ids]
    for number, (source, target) in enumerate(encoded, start=1):
        if not source:
            raise InputError(f"line {number:,} has no source, and this model has not seen an empty one")
        if (length := max(len(source), len(target) - 1)) > max_positions:
            raise InputError(f"line {number:,} has {length:,} subwords, but the model has {max_positions:,} positions")
    found: dict[int, Likelihood] = {}
    lengths = [max(map(len, sides)) for sides in encoded]
    for batch in batched(sorted(range(len(lengths)), key=lengths.__getitem__), lengths.__getitem__, BATCH_TOKENS):
        inputs, outputs = (padded([encoded[i][side] for i in batch], device=device) for side in (0, 1))
        logits = prepared.project(prepared.model.features(inputs, outputs[:, :-1])).float()
        chosen = logits.log_softmax(-1).gather(-1, outputs[:, 1:, None]).squeeze(-1).tolist()
        for i, row in zip(batch, chosen, strict=True):
            scored = encoded[i][1][1 + opening :]
            pieces = [pair.target.piece(symbol) for symbol in scored]
            found[i] = Likelihood(pieces, row[opening : opening + len(scored)])
        done(len(batch))
    return [found[i] for i in range(len(encoded))]
