"""Search, batched, over any step function: no model class is imported here.

Rows are sentence-major: row = sentence * K + k. Nothing in an `advance` makes the host wait for the device, and every
shape in it is fixed; only shrinking the batch reads results during the search.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from deepnmt.decoding.candidates import log_normaliser, top_symbols
from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.rules import FREE, Rules


class State(Protocol):
    """The state that a step function passes from one position to the next."""

    def reorder(self, rows: Tensor) -> Self:
        """Row i becomes the old row rows[i]; a row never leaves its sentence."""

    def select(self, sentences: Tensor) -> Self:
        """Keep these sentences, with all their rows."""


S = TypeVar("S", bound=State)
# Symbols (N,) and state to logits (N, V) of the next position and state. The search may write into the logits.
Step = Callable[[Tensor, S], tuple[Tensor, S]]


# Logits (N, V) of symbols other than the end, that of the end (N, 1), and the model's normaliser (N, 1), to logits and
# symbols (N, C).
Choose = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

# A hypothesis is ranked by log probability / penalty(length); the length counts the end symbol.
PENALTIES: dict[str, Callable[[Tensor, float], Tensor]] = {
    # The authors' code (and fairseq's): score / length**alpha.
    "length": lambda length, alpha: length**alpha,
    # Wu et al. 2016, https://arxiv.org/abs/1609.08144, equation 14.
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,
}


def penalty_table(config: SearchConfig, max_length: int, device: torch.device | str = "cpu") -> Tensor:
    """penalty(n) for n = 0 .. max_length (n = 0 never ends a hypothesis; its entry is 1)."""
    lengths = torch.arange(max_length + 1, dtype=torch.float64).clamp(min=1)
    return PENALTIES[config.penalty_form](lengths, config.length_penalty).float().to(device)


class EnsembleState(list[State]):
    """The states of several step functions."""

    def reorder(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState(part.reorder(rows) for part in self)

    def select(self, sentences: Tensor) -> "EnsembleState":
        return EnsembleState(part.select(sentences) for part in self)


def ensemble_step(steps: Sequence[Step[Any]], symbols: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
    """Several models as one: the mean of their probabilities (computed from log probabilities)."""
    outputs = [step(symbols, part) for step, part in zip(steps, state, strict=True)]
    log_probs = [logits.float().log_softmax(1) for logits, _ in outputs]
    mean = torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
    return mean, EnsembleState(part for _, part in outputs)


@dataclass(frozen=True, slots=True)
class Found:
    """A finished hypothesis: symbols without the end, the log probability with it, the score it is ranked by."""

    symbols: list[int]
    log_prob: float
    score: float


def found_hypotheses(eos: int, symbols: Tensor, log_probs: Tensor, scores: Tensor) -> list[list[Found]]:
    """Symbols (B, N, T) that end with the first `eos`, log probabilities and scores (B, N); -inf: there is none."""
    rows = zip(symbols.tolist(), log_probs.tolist(), scores.tolist(), strict=True)
    return [
        [
            Found(row[: row.index(eos)] if eos in row else row, log_prob, score)
            for row, log_prob, score in zip(*sentence, strict=True)
            if log_prob > -math.inf
        ]
        for sentence in rows
    ]


class Growing(ABC):
    """K hypotheses of each of B sentences, which grow by one symbol at every step."""

    def __init__(self, rules: Rules, config: SearchConfig, width: int) -> None:
        device, (sentences,) = rules.max_lengths.device, rules.max_lengths.shape
        self.rules, self.total = rules, rules.total
        self.penalties = penalty_table(config, self.total + 1, device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.last = torch.full((sentences, width), rules.eos, device=device)
        self.symbols = torch.full((sentences, width, self.total + 1), rules.eos, device=device)
        self.log_probs = torch.zeros(sentences, width, device=device)
        self.done = torch.zeros(sentences, dtype=torch.bool, device=device)

    @abstractmethod
    def advance(self, logits: Tensor) -> Tensor | None:
        """Extend every hypothesis by one symbol given logits (B * K, V).

        Returns which row each new row extends; None: each extends itself.
        """

    @abstractmethod
    def best(self) -> list[list[Found]]:
        """The finished hypotheses of each sentence, best first. The host waits here."""

    def extensions(self, logits: Tensor, choose: Choose) -> tuple[Tensor, Tensor, Tensor]:
        """Log probabilities and symbols (N, C) of the next symbols that `choose` picks, or of the one that a prefix
        forces, and the log probability (N, 1) of ending; -inf: not allowed. Maximum lengths are left to the caller."""
        rules, logits = self.rules, logits.float()
        normaliser = log_normaliser(logits)
        forced, may_end = (
            by_sentence.repeat_interleave(self.last.shape[1])[:, None]
            for by_sentence in (rules.forced(self.position), rules.may_end(self.position))
        )
        forced_value = logits.gather(1, forced.clamp(min=0))
        end = logits[:, rules.eos, None].masked_fill(~may_end, -torch.inf)
        rules.forbid(logits, self.symbols.flatten(0, 1), self.position)
        values, symbols = choose(logits, end, normaliser)
        only = torch.full_like(values, -torch.inf)
        only[:, :1] = torch.where(self.position < rules.free, normaliser, forced_value)
        values, symbols = torch.where(forced == FREE, values, only), torch.where(forced == FREE, symbols, forced)
        return (values - normaliser).clamp(max=0), symbols, (end - normaliser).clamp(max=0)

    def select(self, sentences: Tensor) -> None:
        self.rules = self.rules.select(sentences)
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and name not in ("position", "penalties"):
                setattr(self, name, value[sentences])


@torch.inference_mode()
def search(
    step: Step[S], state: S, growing: Growing, shrink_every: int = 1, shrink_below: float = 0.8
) -> list[list[Found]]:
    """The hypotheses of each sentence, best first: by beam search (`Beams`), greedily or by sampling (`Paths`).

    There are fewer than asked for if the rules allow no more. Every `shrink_every` steps the host waits for the device,
    and finished sentences leave the batch if less than the share `shrink_below` is unfinished, which is then copied.
    """
    found: list[list[Found]] = [[] for _ in growing.done]
    numbers = list(range(len(found)))  # of the sentences in the shrinking batch

    def keep() -> None:
        for number, best in zip(numbers, growing.best(), strict=True):
            found[number] = best

    for position in range(growing.total + 1):
        logits, state = step(growing.last.flatten(), state)
        rows = growing.advance(logits)
        if position == growing.total:
            break
        if rows is not None:
            state = state.reorder(rows)
        if (position + 1) % shrink_every == 0:
            unfinished = [i for i, done in enumerate(growing.done.tolist()) if not done]
            if not unfinished:
                break
            if len(unfinished) < shrink_below * len(numbers):
                keep()
                kept = torch.tensor(unfinished, device=logits.device)
                growing.select(kept)
                state = state.select(kept)
                numbers = [numbers[i] for i in unfinished]
    keep()
    return found


class Beams(Growing):
    """The live hypotheses of B sentences, K each, and the N best finished ones so far.

    A live hypothesis ends when its extension by the end symbol is among the K most probable extensions of its sentence;
    the K most probable other extensions live on. (This is the authors' search; with K = 1 it is greedy search.)

    Why stopping early changes nothing. Let a live hypothesis have log probability p; every finished descendant has
    log probability q <= p <= 0 and a length n between that of ending at once, a, and the longest allowed, b. Penalties
    are positive, so its score q / penalty(n) <= p / penalty(n) <= p / max(penalty(a), ..., penalty(b)). The penalty is
    monotone in n, rising for alpha >= 0 and falling for alpha < 0, so that maximum is the larger of penalty(a) and
    penalty(b). When the N-th best finished score is at least this bound for every live hypothesis, no descendant can
    displace any of the N (equal scores do not displace: the sort is stable and the incumbents come first). Adding a
    number that is not positive and dividing by a positive one are monotone in floating point too, so the argument
    holds for the numbers as computed, provided no log probability is rounded above zero: hence the clamp.
    """

    def __init__(self, rules: Rules, config: SearchConfig, width: int | None = None) -> None:
        super().__init__(rules, config, width or config.beam)
        self.config = config
        sentences, _, length = self.symbols.shape
        # All rows start equal: only the first one counts until their extensions differ.
        self.log_probs[:, 1:] = -torch.inf
        self.num_ended = torch.zeros_like(self.done, dtype=torch.long)
        self.ended_scores = self.log_probs.new_full((sentences, config.nbest), -torch.inf)
        self.ended_log_probs = self.ended_scores.clone()
        self.ended_symbols = self.symbols.new_full((sentences, config.nbest, length), rules.eos)

    def advance(self, logits: Tensor) -> Tensor:
        values, symbols, end = self._by_hypothesis(logits, lambda logits, *_: top_symbols(logits, self.last.shape[1]))
        # The K most probable extensions by a symbol other than the end.
        best = (self.log_probs[:, :, None] + values).flatten(1).topk(self.last.shape[1], dim=1)
        self._finish(self.log_probs + end, best.values)
        last = symbols.flatten(1).gather(1, best.indices)
        return self._continue(best.values, best.indices // values.shape[2], last)

    def _by_hypothesis(self, logits: Tensor, choose: Choose) -> tuple[Tensor, Tensor, Tensor]:
        """The extensions (B, K, C) as the rules allow them, their symbols, and the log probability (B, K) of ending."""
        sentences, width = self.log_probs.shape
        values, symbols, end = (part.view(sentences, width, -1) for part in self.extensions(logits, choose))
        values = values.masked_fill(~self.rules.may_continue(self.position)[:, None, None], -torch.inf)
        return values, symbols, end.squeeze(2)

    def _continue(self, log_probs: Tensor, parents: Tensor, last: Tensor) -> Tensor:
        """Extend each of these parents by its last symbol, all (B, K)."""
        self.log_probs, self.last = log_probs, last
        self.symbols = self.symbols.gather(1, parents[:, :, None].expand_as(self.symbols))
        self.symbols.index_copy_(2, self.position, self.last[:, :, None])
        self.position += 1
        self.done |= self._settled()
        first = torch.arange(0, parents.numel(), parents.shape[1], device=parents.device)
        return (first[:, None] + parents).flatten()

    def _finish(self, ended: Tensor, live: Tensor) -> None:
        """Merge the hypotheses that end here into the N best of each sentence; log probabilities (B, K) of these and of
        those that live on."""
        nbest = self.config.nbest
        threshold = torch.cat([live, ended], dim=1).topk(ended.shape[1], dim=1).values[:, -1:]
        ends = (ended >= threshold) & (ended > -torch.inf) & ~self.done[:, None]
        ended = ended.masked_fill(~ends, -torch.inf)
        scores = torch.cat([self.ended_scores, ended / self.penalties[self.position + 1]], dim=1)
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :nbest]
        self.ended_scores = scores.gather(1, order)
        self.ended_log_probs = torch.cat([self.ended_log_probs, ended], dim=1).gather(1, order)
        symbols = torch.cat([self.ended_symbols, self.symbols], dim=1)
        self.ended_symbols = symbols.gather(1, order[:, :, None].expand(-1, -1, symbols.shape[2]))
        self.num_ended += ends.sum(1)

    def _settled(self) -> Tensor:
        """(B,): is the search over for a sentence?"""
        best = self.log_probs.amax(1)
        settled = (best == -torch.inf) | (self.num_ended >= self.config.patience * self.config.beam)
        if self.config.stop_early:
            longest = self.rules.max_lengths + 1
            penalty = self.penalties[longest].maximum(self.penalties[longest.minimum(self.position + 1)])
            settled |= self.ended_scores[:, -1] >= best / penalty
        return settled

    def best(self) -> list[list[Found]]:
        return found_hypotheses(self.rules.eos, self.ended_symbols, self.ended_log_probs, self.ended_scores)
