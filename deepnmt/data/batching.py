"""Endless, shuffled, resumable updates of batches with a token budget; the same for any number of ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

import numpy as np

from deepnmt.data.bpe_dropout import Resample
from deepnmt.data.buckets import Buckets, fitting_rows
from deepnmt.data.collate import AnyBatch, Batch, pack, pad, without_loss
from deepnmt.data.corpus_mixture import Mixture
from deepnmt.data.dataset import SIDES, Corpus, Dataset, Lengths, Side
from deepnmt.data.epoch_plan import BatchShape, EpochPlan, PackedPlanner, PaddedPlanner, packed_shape
from deepnmt.data.resampling import Resampler
from deepnmt.data.training_pairs import TrainingPairs, with_eos
from deepnmt.errors import InputError
from deepnmt.settings import check_bounds

PLAN_SETTINGS = ("layout", "tokens_per_batch", "max_shapes", "max_length", "temperature", "bpe_dropout")
GROWTH_SAMPLE = 2000  # sentences on which the growth by BPE-dropout is measured
NO_ROWS = 1 << 62  # a part beyond the last row of any batch


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """The recipe's [batching] section."""

    tokens_per_batch: int = 4096  # on either side, padding and eos counted
    layout: Literal["auto", "padded", "packed"] = "auto"  # auto: packed on a GPU, else padded
    max_shapes: int = 256  # padded: maximum number of shapes; fewer shapes mean more padding
    max_length: int | None = None  # longer sentences (either side, eos not counted) are skipped in training
    weights: dict[str, float] = field(default_factory=dict)  # by corpus; default: the dataset's
    temperature: float = 1.0
    bpe_dropout: float = 0.0

    def longest_pair(self) -> tuple[int, str]:
        """The maximum length of either side, eos counted, and the setting that limits it."""
        if self.max_length is not None and self.max_length < self.tokens_per_batch:
            return self.max_length + 1, "max_length"
        return self.tokens_per_batch, "tokens_per_batch"

    def __post_init__(self) -> None:
        check_bounds(self, "tokens_per_batch max_length", least=1)
        check_bounds(self, "max_shapes", least=2, below=1 << 16)
        check_bounds(self, "temperature", above=0)
        check_bounds(self, "bpe_dropout", least=0, below=1)
        for name, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"weights.{name} must be zero or more, not {weight}")


class StreamState(TypedDict):
    """The position of a stream: the next update, and everything that determines the order."""

    epoch: int
    position: int
    made_from: dict[str, Any]


@dataclass(frozen=True)
class Update:
    """One optimiser step: this rank's batches, and the counts over all ranks, which the loss is divided by.

    Every rank has the same number of batches; a batch that only keeps a rank in step has num_target_tokens 0.
    """

    batches: list[AnyBatch]
    num_target_tokens: int
    num_source_tokens: int
    epoch: int
    index: int
    is_last_of_epoch: bool

    def pin_memory(self) -> "Update":
        return replace(self, batches=[batch.pin_memory() for batch in self.batches])


class BatchStream:
    """Iterates updates without end, epoch after epoch, from any state.

    The plan of an epoch depends only on (corpora, config, seed, epoch), and an update is a fixed number of consecutive
    batches of the plan, so any position can be reached by its index. The ranks take an update's batches in turn; with
    fewer batches than ranks, some ranks share a batch by rows.

    With BPE-dropout, planned lengths include the growth measured on a sample. If a segmentation still does not fit, the
    sentence keeps its usual one, so budgets and shapes always hold.
    """

    _next: tuple[int, int]  # epoch and index of the next update

    def __init__(
        self,
        corpora: Mapping[str, Corpus],
        config: BatchingConfig,
        *,
        seed: int,
        tokens_per_update: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        state: StreamState | None = None,
        resample: tuple[Resample, ...] | None = None,
    ) -> None:
        """An update has the number of batches that comes closest to `tokens_per_update`; one batch if that is None.

        `resample` segments source and target sentences again, for BPE-dropout.
        """
        if config.bpe_dropout > 0 and resample is None:
            raise ValueError("bpe_dropout needs `resample`")
        for name in config.weights:
            if name not in corpora:
                raise InputError(f"batching.weights names corpus {name!r}; the dataset has {', '.join(corpora)}")
        self.config, self.seed, self.rank, self.world_size = config, seed, rank, world_size
        self.batches_per_update = max(1, round((tokens_per_update or 0) / config.tokens_per_batch))
        self.pairs = TrainingPairs(corpora, *config.longest_pair())
        weights = [config.weights.get(name, 1.0) for name in corpora]
        self.mixture = Mixture(self.pairs.pools, weights, config.temperature, seed)
        self._is_packed = config.layout == "packed"
        self._resampler = Resampler(resample, seed, self._is_packed) if resample and config.bpe_dropout > 0 else None
        self._lay_out = pack if self._is_packed else pad
        self._planner = self._make_planner()
        self._plan: EpochPlan | None = None
        self._made_from = self._describe(corpora)
        self.seek(state)

    @classmethod
    def of(cls, dataset: Dataset, config: BatchingConfig, **rest: Any) -> "BatchStream":
        """The training corpora of a dataset, with its weights and, for BPE-dropout, its tokenisers."""
        weights = {entry["name"]: float(entry.get("weight", 1.0)) for entry in dataset.meta["train"]}
        resample = None
        if config.bpe_dropout > 0:
            resample = tuple(side.with_dropout(config.bpe_dropout) for side in dataset.tokenizers.sides.values())
        return cls(dataset.train, replace(config, weights=weights | config.weights), resample=resample, **rest)

    @property
    def shapes(self) -> list[BatchShape]:
        """All batch shapes; one when packed."""
        return self._planner.shapes

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        update = self.update(*self._next)
        self._next = (update.epoch + 1, 0) if update.is_last_of_epoch else (update.epoch, update.index + 1)
        return update

    def state(self) -> StreamState:
        return {"epoch": self._next[0], "position": self._next[1], "made_from": dict(self._made_from)}

    def updates_per_epoch(self, epoch: int | None = None) -> int:
        plan = self.plan(self._next[0] if epoch is None else epoch)
        return -(-len(plan) // self.batches_per_update)

    def plan(self, epoch: int) -> EpochPlan:
        plan = self._plan
        if plan is None or plan.epoch != epoch:
            plan = self._plan = self._planner.plan(self.mixture.draw(epoch), self.seed, epoch)
        return plan

    def padding(self) -> tuple[float, float]:
        """The share of padding among the source and target positions of the first epoch."""
        plan = self.plan(0)
        sizes = plan.stops - plan.starts
        shares = []
        for lengths, side in zip(self.pairs.lengths, SIDES, strict=True):
            room = np.array([getattr(shape, side) for shape in self.shapes])[plan.shape_of]
            positions = room if self._is_packed else room * sizes
            shares.append(1 - int(lengths[plan.order].sum()) / int(positions.sum()))
        return shares[0], shares[1]

    def _make_planner(self) -> PaddedPlanner | PackedPlanner:
        config = self.config
        source, target = (self._planned_lengths(side) for side in range(2))
        counts = np.zeros(len(source))  # expected occurrences of each sentence in an epoch
        for pool, draws in zip(self.mixture.pools, self.mixture.draws, strict=True):
            counts[pool] = draws / max(1, len(pool))
        of_chosen = source[counts > 0], target[counts > 0], counts[counts > 0]
        self.longest = int(of_chosen[0].max()), int(of_chosen[1].max())  # of a pair, eos counted
        if self._is_packed:
            return PackedPlanner(source, target, packed_shape(*of_chosen, config.tokens_per_batch))
        buckets = Buckets.fit(*of_chosen, config.tokens_per_batch, config.max_shapes)
        return PaddedPlanner(np.minimum(source, self.longest[0]), np.minimum(target, self.longest[1]), buckets)

    def _planned_lengths(self, side: int) -> Lengths:
        """The real lengths, or with room to grow under BPE-dropout."""
        lengths = self.pairs.lengths[side]
        if self._resampler is None:
            return lengths
        sample = np.flatnonzero(self.pairs.usable)
        sample = sample[:: max(1, len(sample) // GROWTH_SAMPLE)]
        stretched = self._resampler.stretched(lengths, self.pairs.gather(sample, side), sample, side)
        return np.minimum(stretched, np.int32(self.config.tokens_per_batch))

    def update(self, epoch: int, index: int) -> Update:
        plan = self.plan(epoch)
        first = index * self.batches_per_update
        numbers = range(first, min(first + self.batches_per_update, len(plan)))
        sentences = np.concatenate([plan.sentences(number) for number in numbers])
        sources, targets = (int(lengths[sentences].sum()) for lengths in self.pairs.lengths)
        shares = share_out(numbers, self.rank, self.world_size)
        if self._resampler is None:
            pairs = {number: self._pair(plan, number) for number, _, _ in shares}
        else:  # the counts are known only after every rank's batches are segmented
            pairs = {number: self._pair(plan, number) for number in numbers}
            sources, targets = (sum(pair[side].tokens for pair in pairs.values()) for side in range(2))
        return Update(
            batches=[self._batch(plan, number, pairs[number], part, parts) for number, part, parts in shares],
            num_target_tokens=targets,
            num_source_tokens=sources,
            epoch=plan.epoch,
            index=index,
            is_last_of_epoch=numbers.stop == len(plan),
        )

    def _batch(self, plan: EpochPlan, number: int, pair: tuple[Side, Side], part: int, parts: int) -> AnyBatch:
        """Every `parts`-th row of a batch from row `part` on; if there is none, the batch without loss."""
        source, target = pair
        sentences, shape = plan.sentences(number), plan.shape(number)
        if part >= len(sentences):
            return without_loss(self._lay_out(source, target, shape, sentences))
        if parts > 1:
            rows = slice(part, None, parts)
            source, target, sentences = source.take(rows), target.take(rows), sentences[rows]
        return self._lay_out(source, target, shape, sentences)

    def _pair(self, plan: EpochPlan, number: int) -> tuple[Side, Side]:
        sentences = plan.sentences(number)
        source, target = (self.pairs.gather(sentences, side) for side in range(2))
        if self._resampler is None:
            return source, target
        return self._resampler.apply((source, target), plan, number, self.longest)

    def _describe(self, corpora: Mapping[str, Corpus]) -> dict[str, Any]:
        described = {
            name: [len(corpus), *(len(side.ids) for side in corpus.sides), draws]
            for (name, corpus), draws in zip(corpora.items(), self.mixture.draws, strict=True)
        }
        settings = {name: getattr(self.config, name) for name in PLAN_SETTINGS}
        content = [[name, corpus.checksum] for name, corpus in corpora.items()]  # whose order numbers the sentences
        counts = {"seed": self.seed, "batches_per_update": self.batches_per_update}
        return {**counts, **settings, "corpora": described, "content": content}

    def seek(self, state: StreamState | None) -> None:
        """Continue from this position, or from the beginning; the position of a different stream is an error."""
        self._next = (state["epoch"], state["position"]) if state else (0, 0)
        if state is None:
            return
        for name, now in self._made_from.items():
            before = state["made_from"].get(name)
            if before != now:
                changed = (
                    "other sentences, or another order" if name == "content" else f"{name} was {before}, now {now}"
                )
                raise InputError(
                    f"cannot resume: the training data has changed ({changed}); restore it, or start a new run"
                )
        epoch, position = self._next
        if not 0 <= position < self.updates_per_epoch():
            raise InputError(f"cannot resume at update {position} of epoch {epoch}: there is no such update")


def share_out(batches: range, rank: int, world_size: int) -> list[tuple[int, int, int]]:
    """A rank's share of an update, the same number of entries on every rank: (batch, part, number of parts).

    Part i of n of a batch is every n-th row from row i on; a part beyond the last row keeps the rank in step.
    """
    if len(batches) < world_size:
        turn = rank % len(batches)
        parts = -(-(world_size - turn) // len(batches))
        return [(batches[turn], rank // len(batches), parts)]
    mine = [(batch, 0, 1) for batch in batches[rank::world_size]]
    idle = -(-len(batches) // world_size) - len(mine)
    return mine + [(batches[rank], NO_ROWS, 1)] * idle


def held_out_batches(corpus: Corpus, tokens_per_batch: int, max_length: int | None = None) -> list[Batch]:
    """A validation or test set in padded batches of similar length; a sentence above the budget is a batch alone.

    Only pairs with more than `max_length` tokens on a side (eos counted) are left out.
    """
    source, target = (with_eos([side.lengths]) for side in corpus.sides)
    longest = np.maximum(source, target)
    order = np.argsort(-longest, kind="stable")
    if max_length is not None:
        order = order[longest[order] <= max_length]
    batches, start = [], 0
    while start < len(order):
        rows = max(1, int(fitting_rows(int(longest[order[start]]), tokens_per_batch)))
        sentences = order[start : start + rows]
        shape = BatchShape(len(sentences), int(source[sentences].max()), int(target[sentences].max()))
        batches.append(pad(corpus.source.take(sentences), corpus.target.take(sentences), shape, sentences))
        start += rows
    return batches
