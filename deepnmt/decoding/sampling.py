"""One symbol at a time, never looking back: greedy search, and sampling that is reproducible sentence by sentence."""

import hashlib
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from deepnmt.decoding.candidates import log_normaliser, top_symbols
from deepnmt.decoding.config import LengthPenalty, SamplingConfig
from deepnmt.decoding.penalties import penalty_table
from deepnmt.decoding.rules import FREE, Rules
from deepnmt.decoding.search import Found, S, Shrinking, Step, before_end


class Choice(Protocol):
    def choose(self, logits: Tensor, position: Tensor) -> Tensor:
        """One symbol (N,) for each row of logits (N, V)."""

    def select(self, sentences: Tensor) -> None: ...


class Greedy:
    """The most probable symbol."""

    def choose(self, logits: Tensor, position: Tensor) -> Tensor:
        return top_symbols(logits, 1)[1].squeeze(1)

    def select(self, sentences: Tensor) -> None:
        pass


class Draw:
    """A symbol by the inverse of the cumulative distribution at a number that belongs to (seed, sentence, position).

    One number per symbol instead of one random vector over the vocabulary: the draw of a sentence does not depend on
    what else is in its batch, on the order, or on the device.
    """

    def __init__(self, config: SamplingConfig, numbers: Tensor) -> None:
        self.config = config
        self.numbers = numbers  # (B, T, K) in [0, 1)

    def choose(self, logits: Tensor, position: Tensor) -> Tensor:
        values, symbols = self._ranked(logits / self.config.temperature)
        mass = values.double().softmax(1)
        cumulative = mass.cumsum(1)
        if self.config.top_p < 1:
            kept = cumulative - mass < self.config.top_p
            total = mass.masked_fill(~kept, 0).sum(1, keepdim=True)
        else:
            total = cumulative[:, -1:]
        number = self.numbers.index_select(1, position).view(-1, 1)
        # A symbol without mass is never drawn: the first place where the cumulative mass exceeds the number has some.
        place = torch.searchsorted(cumulative, number * total, right=True).clamp(max=values.shape[1] - 1)
        return (place if symbols is None else symbols.gather(1, place)).squeeze(1)

    def _ranked(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.config.top_k:
            return top_symbols(logits, self.config.top_k)
        if self.config.top_p < 1:
            ranked = logits.sort(dim=1, descending=True, stable=True)
            return ranked.values, ranked.indices
        return logits, None

    def select(self, sentences: Tensor) -> None:
        self.numbers = self.numbers[sentences]


def random_numbers(sentences: Sequence[Sequence[int]], seed: int, count: int, length: int) -> Tensor:
    """(B, length, count) numbers in [0, 1), a function of the seed and the sentence alone."""
    streams = []
    for sentence in sentences:
        digest = hashlib.blake2b(np.asarray(sentence, dtype="<i8").tobytes(), digest_size=8).digest()
        key = np.array([seed % 2**64, int.from_bytes(digest, "little")], dtype=np.uint64)
        streams.append(np.random.Generator(np.random.Philox(key=key)).random((length, count)))
    return torch.from_numpy(np.stack(streams))


@torch.inference_mode()
def generate(
    step: Step[S],
    state: S,
    rules: Rules,
    choice: Choice,
    count: int = 1,
    penalty: LengthPenalty = LengthPenalty(),  # noqa: B008 (frozen)
    shrinking: Shrinking = Shrinking(),  # noqa: B008 (frozen)
) -> list[list[Found]]:
    """`count` hypotheses of each sentence, each one chosen symbol by symbol; best score first, equal ones kept."""
    found: list[list[Found]] = [[] for _ in rules.max_lengths]
    numbers = list(range(len(found)))
    paths = _Paths(rules, count)
    table = penalty_table(penalty, rules.total + 1)
    for position in range(rules.total + 1):
        logits, state = step(paths.last.flatten(), state)
        paths.advance(logits, choice)
        if (position + 1) % shrinking.every == 0:
            going_on = [i for i, done in enumerate(paths.ended.all(1).tolist()) if not done]
            if not going_on:
                break
            if len(going_on) < shrinking.below * len(numbers):
                paths.keep(found, numbers, table)
                kept = torch.tensor(going_on, device=logits.device)
                paths.select(kept)
                choice.select(kept)
                state = state.select(kept)
                numbers = [numbers[i] for i in going_on]
    paths.keep(found, numbers, table)
    return found


class _Paths:
    """K hypotheses of each of B sentences, growing side by side."""

    def __init__(self, rules: Rules, count: int) -> None:
        device, (sentences,) = rules.max_lengths.device, rules.max_lengths.shape
        self.rules = rules
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.last = torch.full((sentences, count), rules.eos, device=device)
        self.symbols = torch.full((sentences, count, rules.total + 1), rules.eos, device=device)
        self.log_probs = torch.zeros(sentences, count, device=device)
        self.ended = torch.zeros(sentences, count, dtype=torch.bool, device=device)

    def advance(self, logits: Tensor, choice: Choice) -> None:
        rules, (sentences, count) = self.rules, self.last.shape
        logits = logits.float()
        normaliser = log_normaliser(logits)
        original_end = logits[:, rules.eos].clone()
        forced = rules.forced(self.position)[:, None].expand(sentences, count).flatten()
        forced_values = logits.gather(1, forced.clamp(min=0)[:, None]).squeeze(1)
        rules.forbid(logits, self.symbols.flatten(0, 1), self.position)
        may_end = rules.may_end(self.position)[:, None].expand(sentences, count).flatten()
        logits[:, rules.eos] = original_end.masked_fill(~may_end, -torch.inf)

        chosen = choice.choose(logits, self.position)
        values = logits.gather(1, chosen[:, None]).squeeze(1)
        must_end = ~rules.may_go_on(self.position)[:, None].expand(sentences, count).flatten()
        chosen = torch.where(must_end, rules.eos, torch.where(forced != FREE, forced, chosen))
        values = torch.where(must_end, original_end, torch.where(forced != FREE, forced_values, values))

        gained = (values - normaliser.squeeze(1)).clamp(max=0)
        gained = torch.where(forced != FREE, rules.charged(gained, self.position), gained).view(sentences, count)
        self.log_probs += gained.masked_fill(self.ended, 0)
        self.last = chosen.view(sentences, count).masked_fill(self.ended, rules.eos)
        self.symbols.index_copy_(2, self.position, self.last[:, :, None])
        self.ended |= (self.last == rules.eos) | (self.log_probs == -torch.inf)
        self.position += 1

    def select(self, sentences: Tensor) -> None:
        self.rules = self.rules.select(sentences)
        for name in ("last", "symbols", "log_probs", "ended"):
            setattr(self, name, getattr(self, name)[sentences])

    def keep(self, found: list[list[Found]], numbers: list[int], penalties: Tensor) -> None:
        for number, rows, log_probs in zip(numbers, self.symbols.tolist(), self.log_probs.tolist(), strict=True):
            paths = [
                Found(symbols, log_prob, log_prob / float(penalties[len(symbols) + 1]))
                for symbols, log_prob in zip((before_end(row, self.rules.eos) for row in rows), log_probs, strict=True)
                if log_prob > -math.inf
            ]
            found[number] = sorted(paths, key=lambda path: -path.score)
