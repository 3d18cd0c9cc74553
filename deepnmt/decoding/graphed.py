"""Beam search on a GPU without the host: encoding and one step are recorded once for a shape, then replayed.

Slots for keys and values are set aside for the longest translation, and a step finds its place by a counter that lives
on the device, so every step is the same launches on the same addresses. The search is `Beams`, as everywhere.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.engine import Engine, MemoryVisibility
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.search import Beams, Found
from deepnmt.model.attention import KeysValues, Visibility, attend_padded

LOOK_EVERY = 8  # steps between looks at whether all sentences are done: each look waits for the device
WARM_UPS = 2
STEPS_OF_LENGTH = 16
SENTENCES = (1, 8, 16, 32, 64, 96, 128)  # larger batches keep a GPU busy as they are, and shrink as they finish
KEPT_SHAPES = 16


@dataclass(frozen=True)
class Shape:
    """What a recording is made for; batches are filled up to it."""

    sentences: int
    source_length: int
    target_length: int  # the longest translation, its end not counted
    config: SearchConfig
    banned: tuple[int, ...]
    min_length: int


class GraphedSearches:
    """Recordings by shape; those not used for the longest time are dropped."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.recorded: OrderedDict[Shape, GraphedSearch] = OrderedDict()

    @staticmethod
    def suits(rules: Rules, config: SearchConfig) -> bool:
        simple = rules.prefix is None and not rules.no_repeat_ngram
        return simple and config.beam > 1 and len(rules.max_lengths) <= SENTENCES[-1]

    def search(self, source: Tensor, rules: Rules, config: SearchConfig) -> list[list[Found]]:
        """As `beam_search`, for what `suits`. source: (B, S), padded at the end."""
        shape = Shape(
            sentences=next(size for size in SENTENCES if size >= len(source)),
            source_length=_rounded(source.shape[1]),
            target_length=_rounded(rules.total),
            config=config,
            banned=rules.banned,
            min_length=rules.min_length,
        )
        if shape not in self.recorded:
            while len(self.recorded) >= KEPT_SHAPES:
                self.recorded.popitem(last=False)
            self.recorded[shape] = GraphedSearch(self.engine, shape, rules.eos)
        self.recorded.move_to_end(shape)
        return self.recorded[shape].run(source, rules.max_lengths)


class GraphedSearch:
    @torch.inference_mode()
    def __init__(self, engine: Engine, shape: Shape, eos: int) -> None:
        self.engine, self.shape = engine, shape
        device = engine.model.output_weight.device
        self.pad_id = engine.model.config.pad_id
        self.source = torch.full((shape.sentences, shape.source_length), eos, device=device)
        self.max_lengths = torch.full((shape.sentences,), shape.target_length, device=device)
        rules = Rules(self.max_lengths, eos, shape.banned, shape.min_length)
        rules.max_lengths = self.max_lengths  # the buffer itself, which `run` writes to
        self.beams = Beams(rules, shape.config)
        self.buffers = {name: value for name, value in vars(self.beams).items() if isinstance(value, Tensor)}
        del self.buffers["penalties"]
        self.beginning = {name: buffer.clone() for name, buffer in self.buffers.items()}

        beam, stack = shape.config.beam, engine.model.config.decoder
        capacity = (shape.target_length + 1) * beam
        size = (shape.sentences, stack.num_heads, capacity, stack.dim // stack.num_heads)
        dtype = engine.model.output_weight.dtype
        self.slots = [
            KeysValues(*(torch.zeros(size, dtype=dtype, device=device) for _ in range(2)))
            for _ in range(stack.num_layers)
        ]
        self.ancestors = torch.zeros(shape.sentences, beam, capacity, dtype=torch.bool, device=device)
        self.itself = torch.eye(beam, dtype=torch.bool, device=device).expand(shape.sentences, beam, beam)
        self.places = torch.arange(beam, device=device)
        self.memory: list[KeysValues] = []
        self.padding = torch.zeros(0, dtype=torch.bool, device=device)
        self.start_graph, self.step_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._record()

    @torch.inference_mode()
    def run(self, source: Tensor, max_lengths: Tensor) -> list[list[Found]]:
        """The n best of each sentence. What the batch lacks to its shape is filled with sentences that end at once."""
        count = len(source)
        self.source.fill_(self.pad_id)
        self.source[:, 0] = self.beams.rules.eos
        self.source[:count, : source.shape[1]] = source
        self.max_lengths.zero_()
        self.max_lengths[:count] = max_lengths
        self.start_graph.replay()
        longest = int(max_lengths.max())
        for position in range(longest + 1):
            self.step_graph.replay()
            if position % LOOK_EVERY == LOOK_EVERY - 1 and bool(self.beams.done[:count].all()):
                break
        return self.beams.best()[:count]

    def _record(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._start()
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(self.start_graph):
            self._start()
        with torch.cuda.graph(self.step_graph):
            self._step()

    def _start(self) -> None:
        """Encode, and put the search back to its beginning."""
        cache = self.engine.model.start(self.engine.model.encode(self.source), beam=self.shape.config.beam)
        self.memory, self.padding = cache.memory, cache.padding
        self.ancestors.zero_()
        for name, buffer in self.buffers.items():
            buffer.copy_(self.beginning[name])

    def _step(self) -> None:
        beams, beam = self.beams, self.shape.config.beam
        places = beams.position * beam + self.places
        self.ancestors.index_copy_(2, places, self.itself)
        visible = self.ancestors[:, None]
        over_past = [SlotVisibility(slots, visible, places, beam) for slots in self.slots]
        over_memory = [MemoryVisibility(self.padding, beam)] * len(self.memory)
        model = self.engine.model
        embedded = model.target_embedding(beams.last.view(-1, 1), beams.position)
        (features,) = model.decoder(embedded, list(zip(over_past, self.memory, over_memory, strict=True)))
        rows = beams.advance(self.engine.project(features.squeeze(1)))
        self.ancestors.copy_(self.ancestors.flatten(0, 1).index_select(0, rows).view_as(self.ancestors))
        for name, buffer in self.buffers.items():
            value = getattr(beams, name)
            if value is not buffer:
                buffer.copy_(value)
                setattr(beams, name, buffer)


class SlotVisibility(Visibility):
    """As `AncestorVisibility`, with all slots there from the start; those not yet filled are nobody's ancestors."""

    def __init__(self, slots: KeysValues, visible: Tensor, places: Tensor, beam: int) -> None:
        self.slots, self.visible, self.places, self.beam = slots, visible, places, beam

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        folded = query.reshape(-1, self.beam, *query.shape[2:])
        for part, new in zip(self.slots, seen, strict=True):
            part.index_copy_(2, self.places, new.reshape(folded.shape).transpose(1, 2))
        past = KeysValues(*(part.transpose(1, 2) for part in self.slots))
        return attend_padded(folded, past, dropout, visible=self.visible).reshape(query.shape)


def _rounded(length: int) -> int:
    return -(-max(length, 1) // STEPS_OF_LENGTH) * STEPS_OF_LENGTH
