"""The step of a beam search in two kernels: the best symbols of each row, then the rest of `Beams.advance`.

Every sentence has its own position, and finished ones stay unchanged, so that others can take their places at any time.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.rules import FREE

VOCABULARY_BLOCK = 4096
HISTORY_BLOCK = 32
FAR = tl.constexpr(2**30)


@triton.jit
def _best_symbols(
    Logits, Allowed, Values, Symbols, Highest, Total, vocab_size, width, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The K best allowed symbols of a part of a row, and the part's share of the row's normaliser."""
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab_size
    x = tl.load(Logits + row * width + columns, mask=columns < width).to(tl.float32)
    x = tl.where(inside, x, float("-inf"))
    highest = tl.max(x, 0)
    tl.store(Highest + row * parts + part, highest)
    tl.store(Total + row * parts + part, tl.sum(tl.exp(x - highest), 0))
    x = tl.where(tl.load(Allowed + columns, mask=inside, other=0) != 0, x, float("-inf"))
    for k in tl.static_range(K):
        value = tl.max(x, 0)
        symbol = tl.min(tl.where(x == value, columns, FAR), 0)
        tl.store(Values + (row * parts + part) * K + k, value)
        tl.store(Symbols + (row * parts + part) * K + k, symbol)
        x = tl.where(columns == symbol, float("-inf"), x)


@triton.jit
def _normaliser(Highest, Total, rows, live, PARTS: tl.constexpr, PARTS_PADDED: tl.constexpr):
    """Of the logits of each hypothesis, from the maxima and sums of their parts."""
    parts = tl.arange(0, PARTS_PADDED)
    there = live[:, None] & (parts < PARTS)[None, :]
    place = rows[:, None] * PARTS + parts[None, :]
    highest = tl.load(Highest + place, mask=there, other=float("-inf"))
    totals = tl.load(Total + place, mask=there, other=0.0)
    top = tl.where(live, tl.max(highest, 1), 0.0)
    return top + tl.log(tl.sum(totals * tl.exp(highest - top[:, None]), 1))


@triton.jit
def _most_probable(
    Values, Symbols, rows, live, log_probs, normaliser, may_go_on,
    PARTS: tl.constexpr, K: tl.constexpr, K_PADDED: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """The K most probable extensions by a symbol other than the end: log probabilities, parents, symbols."""
    hypotheses, columns = tl.arange(0, K_PADDED), tl.arange(0, CANDIDATES)
    there = live[:, None] & (columns < PARTS * K)[None, :]
    place = rows[:, None] * (PARTS * K) + columns[None, :]
    values = tl.load(Values + place, mask=there, other=float("-inf"))
    symbols = tl.load(Symbols + place, mask=there, other=0)
    values = log_probs[:, None] + tl.minimum(values - normaliser[:, None], 0.0)
    values = tl.where(there & may_go_on, values, float("-inf"))
    index = hypotheses[:, None] * CANDIDATES + columns[None, :]
    going_on = tl.full((K_PADDED,), float("-inf"), tl.float32)
    parents = tl.zeros((K_PADDED,), tl.int32)
    last = tl.zeros((K_PADDED,), tl.int32)
    for k in tl.static_range(K):
        value = tl.max(tl.max(values, 1), 0)
        chosen = tl.min(tl.min(tl.where(values == value, index, FAR), 1), 0)
        chosen = tl.minimum(chosen, K * CANDIDATES - 1)
        symbol = tl.sum(tl.sum(tl.where(index == chosen, symbols, 0), 1), 0)
        going_on = tl.where(hypotheses == k, value, going_on)
        parents = tl.where(hypotheses == k, chosen // CANDIDATES, parents)
        last = tl.where(hypotheses == k, symbol, last)
        values = tl.where(index == chosen, float("-inf"), values)
    return going_on, parents, last


@triton.jit
def _ending(going_on, ended, active, K: tl.constexpr):
    """Which hypotheses end: their end is among the K most probable extensions."""
    as_good = tl.sum((going_on[None, :] >= going_on[:, None]).to(tl.int32), 1)
    as_good += tl.sum((ended[None, :] >= going_on[:, None]).to(tl.int32), 1)
    threshold = tl.max(tl.where(as_good >= K, going_on, float("-inf")), 0)
    as_good = tl.sum((going_on[None, :] >= ended[:, None]).to(tl.int32), 1)
    as_good += tl.sum((ended[None, :] >= ended[:, None]).to(tl.int32), 1)
    threshold = tl.maximum(threshold, tl.max(tl.where(as_good >= K, ended, float("-inf")), 0))
    return (ended >= threshold) & (ended > float("-inf")) & active


@triton.jit
def _best_ended(
    before, log_probs_before, scores, ended, live,
    K: tl.constexpr, K_PADDED: tl.constexpr, N: tl.constexpr, N_PADDED: tl.constexpr,
):  # fmt: skip
    """The N best of those that ended before and now, of equal ones the earlier: scores, log probabilities, and which
    they are; those from N on ended now."""
    hypotheses, ranks = tl.arange(0, K_PADDED), tl.arange(0, N_PADDED)
    kept = ranks < N
    best_scores = tl.full((N_PADDED,), float("-inf"), tl.float32)
    best_log_probs = tl.full((N_PADDED,), float("-inf"), tl.float32)
    order = tl.zeros((N_PADDED,), tl.int32)
    for n in tl.static_range(N):
        value = tl.maximum(tl.max(before, 0), tl.max(scores, 0))
        chosen = tl.min(tl.where((before == value) & kept, ranks, FAR), 0)
        chosen = tl.minimum(chosen, tl.min(tl.where((scores == value) & live, hypotheses + N, FAR), 0))
        chosen = tl.minimum(chosen, N + K - 1)
        log_prob = tl.sum(tl.where((ranks == chosen) & kept, log_probs_before, 0.0), 0)
        log_prob += tl.sum(tl.where(hypotheses + N == chosen, ended, 0.0), 0)
        best_scores = tl.where(ranks == n, value, best_scores)
        log_prob = tl.where(value > float("-inf"), log_prob, float("-inf"))
        best_log_probs = tl.where(ranks == n, log_prob, best_log_probs)
        order = tl.where(ranks == n, chosen, order)
        before = tl.where((ranks == chosen) & kept, float("-inf"), before)
        scores = tl.where(hypotheses + N == chosen, float("-inf"), scores)
    return best_scores, best_log_probs, order


@triton.jit
def _move_texts(
    Said, Lineage, EndedSaid, sentence, position, parents, last, order, active, eos, capacity,
    K: tl.constexpr, K_PADDED: tl.constexpr, N: tl.constexpr, N_PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each hypothesis takes its parent's symbols and its own, and each that ended those of the place it came from."""
    hypotheses, ranks = tl.arange(0, K_PADDED), tl.arange(0, N_PADDED)
    live, kept = hypotheses < K, ranks < N
    for start in range(0, position + 1, BLOCK):
        times = start + tl.arange(0, BLOCK)
        old, new = (times < position)[None, :], (times <= position)[None, :]
        places = (sentence * K + parents)[:, None] * capacity + times[None, :]
        said = tl.load(Said + places, mask=live[:, None] & old, other=0)
        lineage = tl.load(Lineage + places, mask=live[:, None] & old, other=0)
        was_ended = (order < N)[:, None]
        places = (sentence * N + order)[:, None] * capacity + times[None, :]
        ended_before = tl.load(EndedSaid + places, mask=kept[:, None] & was_ended & new, other=eos)
        places = (sentence * K + order - N)[:, None] * capacity + times[None, :]
        ended_now = tl.load(Said + places, mask=kept[:, None] & ~was_ended & old, other=eos)
        # All is read before anything is written: rows change places.
        tl.debug_barrier()
        writes = live[:, None] & new & active
        places = (sentence * K + hypotheses)[:, None] * capacity + times[None, :]
        tl.store(Said + places, tl.where(old, said, last[:, None]), mask=writes)
        tl.store(Lineage + places, tl.where(old, lineage, parents[:, None]), mask=writes)
        places = (sentence * N + ranks)[:, None] * capacity + times[None, :]
        tl.store(EndedSaid + places, tl.where(was_ended, ended_before, ended_now), mask=kept[:, None] & new & active)


@triton.jit
def _advance(
    Values, Symbols, Highest, Total, Logits, Penalties,
    Position, Opening, MaxLengths, Done, LogProbs, Last, Said, Lineage, NumEnded, EndedScores, EndedLogProbs, EndedSaid,
    width, eos, min_length, enough, capacity,
    PARTS: tl.constexpr, PARTS_PADDED: tl.constexpr, K: tl.constexpr, K_PADDED: tl.constexpr,
    N: tl.constexpr, N_PADDED: tl.constexpr, CANDIDATES: tl.constexpr, STOP_EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`Beams.advance` for one sentence; the comments there explain it."""
    sentence = tl.program_id(0)
    active = tl.load(Done + sentence) == 0
    position = tl.load(Position + sentence)
    max_length = tl.load(MaxLengths + sentence)
    hypotheses, ranks = tl.arange(0, K_PADDED), tl.arange(0, N_PADDED)
    live, kept = hypotheses < K, ranks < N
    rows = sentence * K + hypotheses
    log_probs = tl.load(LogProbs + rows, mask=live, other=float("-inf"))
    normaliser = _normaliser(Highest, Total, rows, live, PARTS, PARTS_PADDED)
    going_on, parents, last = _most_probable(
        Values, Symbols, rows, live, log_probs, normaliser, position < max_length, PARTS, K, K_PADDED, CANDIDATES
    )

    # At the first position the opening of the translation, if it has one, at no cost.
    opening = tl.load(Opening + sentence)
    opens = (position == 0) & (opening >= 0)
    going_on = tl.where(opens, tl.where(hypotheses == 0, 0.0, float("-inf")), going_on)
    parents = tl.where(opens, 0, parents)
    last = tl.where(opens, opening, last)

    end = tl.load(Logits + rows.to(tl.int64) * width + eos, mask=live, other=float("-inf")).to(tl.float32)
    ended = log_probs + tl.minimum(end - normaliser, 0.0)
    ended = tl.where(live & (position >= min_length) & (opens == 0), ended, float("-inf"))
    ends = _ending(going_on, ended, active, K)
    ended = tl.where(ends, ended, float("-inf"))
    before = tl.load(EndedScores + sentence * N + ranks, mask=kept, other=float("-inf"))
    log_probs_before = tl.load(EndedLogProbs + sentence * N + ranks, mask=kept, other=0.0)
    scores = ended / tl.load(Penalties + position + 1)
    best_scores, best_log_probs, order = _best_ended(
        before, log_probs_before, scores, ended, live, K, K_PADDED, N, N_PADDED
    )

    num_ended = tl.load(NumEnded + sentence) + tl.sum(ends.to(tl.int32), 0)
    best = tl.max(going_on, 0)
    settled = (best == float("-inf")) | (num_ended >= enough)
    if STOP_EARLY:
        longest = max_length + 1
        penalty = tl.maximum(tl.load(Penalties + longest), tl.load(Penalties + tl.minimum(longest, position + 2)))
        worst = tl.sum(tl.where(ranks == N - 1, best_scores, 0.0), 0)
        settled = settled | (worst >= best / penalty)

    _move_texts(
        Said, Lineage, EndedSaid, sentence, position, parents, last, order, active, eos, capacity,
        K, K_PADDED, N, N_PADDED, BLOCK,
    )  # fmt: skip
    tl.store(LogProbs + rows, going_on, mask=live & active)
    tl.store(Last + rows, last, mask=live & active)
    tl.store(EndedScores + sentence * N + ranks, best_scores, mask=kept & active)
    tl.store(EndedLogProbs + sentence * N + ranks, best_log_probs, mask=kept & active)
    tl.store(NumEnded + sentence, num_ended, mask=active)
    tl.store(Position + sentence, position + 1, mask=active)
    tl.store(Done + sentence, settled.to(tl.int32), mask=active)


@dataclass(frozen=True)
class BeamState:
    """The state of `Beams`, for sentences that each have their own position. All int32 but the scores."""

    position: Tensor  # (B,)
    opening: Tensor  # (B,) the symbol a translation begins with at no cost, such as the tag of a language, or FREE
    max_lengths: Tensor  # (B,)
    done: Tensor  # (B,) 0 or 1; finished sentences wait to be replaced
    log_probs: Tensor  # (B, K)
    last: Tensor  # (B, K)
    said: Tensor  # (B, K, capacity)
    lineage: Tensor  # (B, K, capacity): which hypothesis of an earlier position this one descends from
    num_ended: Tensor  # (B,)
    ended_scores: Tensor  # (B, N)
    ended_log_probs: Tensor  # (B, N)
    ended_said: Tensor  # (B, N, capacity)

    @classmethod
    def empty(cls, sentences: int, capacity: int, config: SearchConfig, device: torch.device) -> "BeamState":
        def integers(*shape: int) -> Tensor:
            return torch.zeros(sentences, *shape, dtype=torch.int32, device=device)

        def numbers(*shape: int) -> Tensor:
            return torch.full((sentences, *shape), -torch.inf, device=device)

        width, nbest = config.beam, config.nbest
        return cls(
            integers(), integers() + FREE, integers(), integers() + 1, numbers(width), integers(width),
            integers(width, capacity), integers(width, capacity), integers(), numbers(nbest), numbers(nbest),
            integers(nbest, capacity),
        )  # fmt: skip

    def begin(self, sentences: Tensor, openings: Tensor, max_lengths: Tensor, eos: int) -> None:
        """Put these sentences (n,) at their beginning. Old symbols are overwritten before they are read."""
        self.position[sentences] = 0
        self.opening[sentences] = openings
        self.max_lengths[sentences] = max_lengths
        self.log_probs[sentences] = -torch.inf
        self.log_probs[sentences, 0] = 0.0
        self.last[sentences] = eos
        self.num_ended[sentences] = 0
        self.ended_scores[sentences] = -torch.inf
        self.ended_log_probs[sentences] = -torch.inf
        self.done[sentences] = 0


def advance(
    state: BeamState,
    logits: Tensor,
    allowed: Tensor,
    penalties: Tensor,
    config: SearchConfig,
    eos: int,
    min_length: int,
) -> None:
    """Extend every hypothesis by one symbol given logits (B * K, V), in place. allowed: (V,) int8, not the end.

    The logits may be the first columns of wider rows.
    """
    (rows, vocab_size), width = logits.shape, logits.stride(0)
    block = min(triton.next_power_of_2(vocab_size), VOCABULARY_BLOCK)
    parts, beam = triton.cdiv(vocab_size, block), config.beam
    values = torch.empty(rows, parts, beam, device=logits.device)
    symbols = torch.empty(rows, parts, beam, dtype=torch.int32, device=logits.device)
    highest, total = (torch.empty(rows, parts, device=logits.device) for _ in range(2))
    _best_symbols[(rows, parts)](
        logits, allowed, values, symbols, highest, total, vocab_size, width, K=beam, BLOCK=block, num_warps=8
    )
    _advance[(len(state.done),)](
        values, symbols, highest, total, logits, penalties,
        state.position, state.opening, state.max_lengths, state.done, state.log_probs, state.last, state.said,
        state.lineage, state.num_ended, state.ended_scores, state.ended_log_probs, state.ended_said,
        width, eos, min_length, config.patience * beam, state.said.shape[2],
        PARTS=parts, PARTS_PADDED=triton.next_power_of_2(parts), K=beam, K_PADDED=triton.next_power_of_2(beam),
        N=config.nbest, N_PADDED=triton.next_power_of_2(config.nbest),
        CANDIDATES=triton.next_power_of_2(parts * beam), STOP_EARLY=config.stop_early, BLOCK=HISTORY_BLOCK,
        num_warps=1,
    )  # fmt: skip
