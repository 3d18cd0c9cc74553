"""Beam search over any number of sentences on a GPU: the next sentence takes the slot of a finished one.

One recorded step advances a fixed number of slots, however long the sentences in them are. Every few steps the host
removes finished sentences and fills their slots with waiting ones; sentences are encoded ahead, many at a time.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepnmt.decoding.config import SearchConfig, SlotShape
from deepnmt.decoding.prepared import PreparedModel
from deepnmt.decoding.rules import FREE, Rules
from deepnmt.decoding.search import Found, found_hypotheses
from deepnmt.model.kernels.graphs import Work, record_graph
from deepnmt.model.transformer import Transformer

if TYPE_CHECKING:
    from deepnmt.decoding.fused import FusedStep  # which needs Triton

WIDEST_BEAM = 8  # the kernels unroll over it
SLOTS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STEPS_OF_LENGTH = 64  # unused room costs memory but no time
KEPT_SHAPES = 4
MEMORY_SHARE = 0.4  # of what is free on the device, for the slots of one shape
LOOK_EVERY = {"few": 8, "many": 4}  # steps; each time the host waits for the device
MANY = 256  # slots
WORTH_REFILLING = 0.125  # slots are refilled when at least this share of them is empty
ENCODED_TOKENS = 32_768  # at once, with padding
RECORDED_ENCODER_SENTENCES = 128  # larger batches keep a GPU busy without recording
KEPT_ENCODERS = 16

Results = list[tuple[int, list[Found]]]  # the number of a sentence and its n best


def can_fuse(model: Transformer) -> bool:
    """Do the kernels support the decoder step of this model? If not, the plain search is used."""
    stack = model.config.decoder
    known = model.config.norm_kind == "layer" and model.config.sublayer_of(stack).kind in ("pre", "post")
    mixture = model.decoder.connection.mixture()
    known = known and mixture is not None and (mixture.matrix is None or mixture.matrix.shape[2] == 1)
    is_power_of_two = stack.head_dim & (stack.head_dim - 1) == 0
    return known and stack.head_dim >= 16 and is_power_of_two and find_spec("triton") is not None


class CannotFuseError(Exception):
    """The kernels cannot be built on this machine."""


class ContinuousSearches:
    """Recorded searches by shape; the least recently used are dropped."""

    def __init__(self, prepared: PreparedModel, most: int = SLOTS[-1]) -> None:
        self.prepared, self.most = prepared, most
        self.recorded: OrderedDict[SlotShape, SlotSearch] = OrderedDict()

    @staticmethod
    def suits(config: SearchConfig, no_repeat_ngram: int = 0) -> bool:
        """Prefixes are not supported, except one symbol at no cost for each sentence: the tag of its language."""
        return 1 < config.beam <= WIDEST_BEAM and not no_repeat_ngram

    def search(self, sources: Sequence[Sequence[int]], rules: Rules, config: SearchConfig) -> Iterator[Results]:
        """The n best of each source (ids with the end), as they are found."""
        if not sources:
            return
        openings = [FREE] * len(sources) if rules.prefix is None else rules.prefix.squeeze(1).tolist()
        begins = list(zip(openings, rules.max_lengths.tolist(), strict=True))
        yield from self._slots(max(map(len, sources)), rules, config, len(sources)).run(sources, begins)

    def search_all(self, sources: Sequence[Sequence[int]], rules: Rules, config: SearchConfig) -> list[list[Found]]:
        found: dict[int, list[Found]] = {}
        for results in self.search(sources, rules, config):
            found.update(results)
        return [found[number] for number in range(len(sources))]

    def forget(self) -> None:
        """Release the memory, and use half as much the next time."""
        self.most = max(self.most // 2, 1)
        self.recorded.clear()

    def _slots(self, source_length: int, rules: Rules, config: SearchConfig, count: int) -> "SlotSearch":
        lengths = (_rounded(source_length), _rounded(rules.total + 1))
        most = max(1, min(self.most, self._affordable(lengths, config.beam)))
        sizes = [size for size in SLOTS if size <= most]
        sentences = next((size for size in sizes if size >= count), sizes[-1])
        wanted = SlotShape(sentences, *lengths, config, rules.banned, rules.min_length)
        # A larger recording serves as well: unused capacity costs no time.
        shape = next((shape for shape in self.recorded if _covers(shape, wanted)), wanted)
        if shape not in self.recorded:
            while len(self.recorded) >= KEPT_SHAPES:
                self.recorded.popitem(last=False)
            try:
                self.recorded[shape] = SlotSearch(self.prepared, shape, rules.eos)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler on the user's machine may say
                raise CannotFuseError(str(error)) from error
        self.recorded.move_to_end(shape)
        return self.recorded[shape]

    def _affordable(self, lengths: tuple[int, int], beam: int) -> int:
        """The number of sentences of these lengths that fit into the device's memory."""
        weight, stack = self.prepared.model.output_weight, self.prepared.model.config.decoder
        if not weight.is_cuda:
            return SLOTS[-1]
        positions = 2 * stack.num_layers * (lengths[0] + lengths[1] * beam)
        each = weight.itemsize * (positions * stack.dim + 2 * beam * len(weight))
        free, _ = torch.cuda.mem_get_info(weight.device)
        unused = torch.cuda.memory_reserved(weight.device) - torch.cuda.memory_allocated(weight.device)
        return int(MEMORY_SHARE * (free + unused) / each)


@dataclass(frozen=True)
class _Encoded:
    """Sentences that wait for a slot."""

    numbers: list[int]
    memory: Tensor  # (layers, 2, sentences, S, heads, head_dim)
    limits: Tensor  # (3, sentences): source length, opening, maximum length

    def split(self, count: int) -> tuple["_Encoded", "_Encoded | None"]:
        if count >= len(self.numbers):
            return self, None
        first, rest = (
            _Encoded(self.numbers[part], self.memory[:, :, part], self.limits[:, part])
            for part in (slice(None, count), slice(count, None))
        )
        return first, rest


class SlotSearch:
    """The slots of one shape, their recorded step, and the sentences in them."""

    def __init__(self, prepared: PreparedModel, shape: SlotShape, eos: int) -> None:
        self.prepared, self.shape = prepared, shape
        self.device = prepared.model.output_weight.device
        from deepnmt.decoding.fused import FusedStep

        self.fused = FusedStep(prepared, shape, eos)
        self.step = record(self.fused.step, self.device)
        self._recorded_encoder = lru_cache(KEPT_ENCODERS)(partial(_RecordedEncoder, prepared))
        self.look_every = LOOK_EVERY["many" if shape.sentences >= MANY else "few"]

    @torch.inference_mode()
    def run(self, sources: Sequence[Sequence[int]], begins: Sequence[tuple[int, int]]) -> Iterator[Results]:
        """The longest first, so that the last ones are short. begins: the opening and the maximum length of each"""
        state = self.fused.state
        state.done.fill_(1)  # an abandoned run may have left some unfinished
        waiting = deque(sorted(range(len(sources)), key=lambda number: -len(sources[number])))
        encoded: _Encoded | None = None
        within: dict[int, tuple[int, int]] = {}  # slot: the number of its sentence, and its last possible step
        free = list(range(self.shape.sentences))
        steps = 0
        pending: _Leaving | None = None
        while waiting or encoded or within:
            while free and (waiting or encoded):
                encoded = encoded or self._encode(waiting, sources, begins)
                entering, encoded = encoded.split(len(free))
                slots, free = free[: len(entering.numbers)], free[len(entering.numbers) :]
                self.fused.put(self._tensor(slots), entering.memory, entering.limits)
                for slot, number in zip(slots, entering.numbers, strict=True):
                    within[slot] = (number, steps + begins[number][1] + 1)
            left = max(last for _, last in within.values()) - steps
            for _ in range(min(self.look_every, left)):
                self.step()
                steps += 1
            if pending is not None:
                # While the device works.
                yield pending.results()
                pending = None
            done = state.done.tolist()
            finished = [slot for slot in within if done[slot]]
            room = len(free) + len(finished)
            more = bool(waiting) or encoded is not None
            if len(finished) == len(within) or (more and room >= WORTH_REFILLING * self.shape.sentences):
                pending = _Leaving([within.pop(slot)[0] for slot in finished], self.fused, self._tensor(finished))
                free += finished
        if pending is not None:
            yield pending.results()

    def _encode(
        self, waiting: deque[int], sources: Sequence[Sequence[int]], begins: Sequence[tuple[int, int]]
    ) -> _Encoded:
        width = len(sources[waiting[0]])
        count = min(len(waiting), self.shape.sentences, max(ENCODED_TOKENS // width, 1))
        numbers = [waiting.popleft() for _ in range(count)]
        chosen = [sources[number] for number in numbers]
        limits = self._tensor([[len(sources[number]), *begins[number]] for number in numbers]).int()
        return _Encoded(numbers, self.encode(chosen), limits.T)

    @torch.inference_mode()
    def encode(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """The keys and values of these sources for all decoder layers: (layers, 2, n, S, heads, head_dim)"""
        width, pad = max(map(len, sources)), self.prepared.model.config.pad_id
        source = self._tensor([[*ids, *[pad] * (width - len(ids))] for ids in sources])
        return self._encoder(len(sources), width)(source)

    def _encoder(self, count: int, width: int) -> Callable[[Tensor], Tensor]:
        if self.device.type != "cuda" or self.shape.sentences > RECORDED_ENCODER_SENTENCES:
            return lambda source: encode(self.prepared, source)
        size = next(size for size in SLOTS if size >= count)
        return self._recorded_encoder(size, min(_rounded(width, 16), self.shape.source_length))

    def _tensor(self, content: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(content, pin_memory=self.device.type == "cuda").to(self.device, non_blocking=True)


class _Leaving:
    """Sentences that are done, on their way to the host."""

    def __init__(self, numbers: list[int], fused: "FusedStep", slots: Tensor) -> None:
        self.numbers, self.eos = numbers, fused.eos
        state = fused.state
        ended = state.ended_said, state.ended_log_probs, state.ended_scores
        self.parts = [part[slots].to("cpu", non_blocking=True) for part in ended]  # into pinned memory
        self.arrived = torch.cuda.Event() if slots.is_cuda else None
        if self.arrived is not None:
            self.arrived.record()

    def results(self) -> Results:
        if self.arrived is not None:
            self.arrived.synchronize()
        return list(zip(self.numbers, found_hypotheses(self.eos, *self.parts), strict=True))


class _RecordedEncoder:
    """Encodes batches of one shape; smaller batches are padded with empty sentences."""

    @torch.inference_mode()
    def __init__(self, prepared: PreparedModel, sentences: int, length: int) -> None:
        device = prepared.model.output_weight.device
        self.pad_id = prepared.model.config.pad_id
        self.source = torch.full((sentences, length), self.pad_id + 1, device=device)
        self.memory = encode(prepared, self.source)

        def run() -> None:
            self.memory.copy_(encode(prepared, self.source))

        self.replay = record(run, device)

    def __call__(self, source: Tensor) -> Tensor:
        """The result is overwritten by the next call."""
        count, width = source.shape
        self.source.fill_(self.pad_id)
        self.source[:, 0] = self.pad_id + 1
        self.source[:count, :width] = source
        self.replay()
        return self.memory[:, :, :count, :width]


def encode(prepared: PreparedModel, source: Tensor) -> Tensor:
    """The keys and values of a source (n, S) for all decoder layers: (layers, 2, n, S, heads, head_dim)"""
    memory = prepared.model.project_memories(prepared.model.encode(source))
    return torch.stack([part for layer in memory for part in layer]).unflatten(0, (len(memory), 2))


def _covers(shape: SlotShape, wanted: SlotShape) -> bool:
    """Can a recording of `shape` serve in place of one of `wanted`?"""
    is_longer = shape.source_length >= wanted.source_length and shape.target_length >= wanted.target_length
    return is_longer and shape == replace(wanted, source_length=shape.source_length, target_length=shape.target_length)


def _rounded(length: int, step: int = STEPS_OF_LENGTH) -> int:
    return -(-max(length, 1) // step) * step


def record(work: Work, device: torch.device) -> Work:
    """The same work: on a GPU its launches as one CUDA graph, elsewhere itself."""
    return record_graph(work) if device.type == "cuda" else work
