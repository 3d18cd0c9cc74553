"""The probability of given translations, subword by subword (forced decoding)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import EOS, PAD
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


@dataclass(frozen=True)
class ForcedBatch:
    """Pairs of similar length as ids. A position is `scored` unless it is padding or predicts a language tag."""

    sentences: list[int]  # their numbers
    source: Tensor  # (B, S)
    target_input: Tensor  # (B, T)
    target: Tensor  # (B, T): what each position has to predict
    scored: Tensor  # (B, T)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Those of the target. logits: (B, T, V) -> (B, T); zero where nothing is scored."""
        chosen = logits.float().log_softmax(-1).gather(-1, self.target.unsqueeze(-1)).squeeze(-1)
        return chosen.masked_fill(~self.scored, 0.0)


def forced_batches(
    pair: TokenizerPair, texts: Mapping[int, tuple[str, str]], max_positions: int, device: torch.device
) -> Iterator[ForcedBatch]:
    """Sources and targets by number, from zero, sorted by length. A line that the model cannot take is refused."""
    sources, targets = ([text[side] for text in texts.values()] for side in (0, 1))
    ids = zip(pair.source.encode_batch(sources), pair.target.encode_batch(targets), strict=True)
    sides = (([*source, *pair.source.ending], [EOS, *target, EOS]) for source, target in ids)
    encoded = dict(zip(texts, sides, strict=True))
    for number, (source, target) in encoded.items():
        if not source:
            raise InputError(f"line {number + 1:,} has an empty source, on which this model was not trained")
        if (length := max(len(source), len(target) - 1)) > max_positions:
            subwords = f"line {number + 1:,} has {length:,} subwords"
            raise InputError(f"{subwords}, but the model has {max_positions:,} positions")
    lengths = {number: max(map(len, sides)) for number, sides in encoded.items()}
    for batch in batched(sorted(lengths, key=lengths.__getitem__), lengths.__getitem__, BATCH_TOKENS):
        inputs, outputs = (padded([encoded[i][side] for i in batch], device=device) for side in (0, 1))
        scored = outputs[:, 1:] != PAD
        scored[:, : len(pair.target.opening())] = False
        yield ForcedBatch(batch, inputs, outputs[:, :-1], outputs[:, 1:], scored)


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
    found: dict[int, Likelihood] = {}
    texts = dict(enumerate(zip(sources, targets, strict=True)))
    for batch in forced_batches(pair, texts, max_positions, prepared.model.output_weight.device):
        log_probs = batch.log_probs(prepared.project(prepared.model.features(batch.source, batch.target_input)))
        rows = zip(log_probs.cpu(), batch.target.cpu(), batch.scored.cpu(), strict=True)
        for i, (values, symbols, scored) in zip(batch.sentences, rows, strict=True):
            pieces = [pair.target.piece(symbol) for symbol in symbols[scored].tolist()]
            found[i] = Likelihood(pieces, values[scored].tolist())
        done(len(batch.sentences))
    return [found[i] for i in range(len(found))]
