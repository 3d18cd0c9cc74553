"""The engine of a GPU: packed batches, compiled layers, and one CUDA graph for the whole forward and backward pass.

A packed batch always has the same shapes, so the kernel launches of one pass are recorded once and replayed for every
batch. That removes the host's overhead, which dominates small models and matters for large ones. `EagerEngine` is the
plain twin.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial

import torch
from torch import Tensor

from deepnmt.data.batching import Update
from deepnmt.data.collate import AnyBatch
from deepnmt.model.kernels.graphs import Work, record_graph
from deepnmt.model.transformer import Transformer
from deepnmt.training.distributed import World
from deepnmt.training.engine import EagerEngine, Noise, Objective, zero_gradients
from deepnmt.training.memory import Splitter, free_memory, is_out_of_memory, sizes_of

WARM_UPS = 3  # passes before recording
SPARE = 1 / 16  # share of a pass's memory left free


class GraphEngine(EagerEngine):
    """`record` turns the work of a pass into its replay. If a pass does not fit in memory, smaller pieces are recorded.

    Only recording allocates memory, so a batch fails at its first pass or never.
    """

    def __init__(
        self,
        objective: Objective,
        world: World,
        splitter: Splitter | None = None,
        record: Callable[[Work], Work] | None = None,
    ) -> None:
        self.batch: AnyBatch | None = None  # the tensors that the recording reads
        self.replay: Work | None = None
        super().__init__(objective, world, splitter)
        self.sums = torch.zeros(2, dtype=torch.float64, device=world.device)
        self.factor = torch.zeros((), device=world.device)
        # One stream for every recording: the matrix library keeps work spaces for each that it has ever seen.
        self.record = record or partial(
            record_graph, stream=torch.cuda.Stream(world.device), warm_ups=WARM_UPS, spare=SPARE
        )

    def take(self, model: Transformer) -> None:
        self.batch = self.replay = None
        free_memory(self.world.device)
        super().take(model)

    def accumulate(self, update: Update, scale: Tensor, noise: Noise) -> Tensor:
        pieces, replay = self._recorded(update.batches)
        zero_gradients(self.parameters)
        self.sums.zero_()
        self.factor.copy_(scale / update.num_target_tokens)
        for piece in pieces:
            self._load(piece)
            noise.seed_for(piece)
            replay()
        self.gradient_sum.start()
        return self.sums.clone()

    def _recorded(self, batches: Sequence[AnyBatch]) -> tuple[list[AnyBatch], Work]:
        """The batches in pieces that fit, and the replay of a pass over one, recorded anew if the shape has changed."""
        while True:
            pieces = self.splitter.cut(batches)
            if self.batch is None or sizes_of(self.batch) != sizes_of(pieces[0]):
                self._try_to_record(pieces[0])
            if self.replay is not None:
                return pieces, self.replay
            # Outside the exception handler, the frames that hold the failed pass's memory are gone.
            free_memory(self.world.device)
            self.splitter.shrink(pieces[0], batches, self.world)

    def _try_to_record(self, example: AnyBatch) -> None:
        """If it does not fit, leaves no recording and none of its memory."""
        had_one = self.replay is not None
        self.batch = self.replay = None
        if had_one:
            free_memory(self.world.device)
        try:
            batch = self.batch = example.to(self.world.device)
            zero_gradients(self.parameters)
            self.gradient_sum.prepare()
            with compiled_layers(self.objective.model) if self.config.compile else nullcontext():
                self.replay = self.record(lambda: self._run_marked_pass(batch))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self.batch = None

    def _run_marked_pass(self, batch: AnyBatch) -> None:
        with self.gradient_sum.marking():
            self.run_pass(batch, self.factor, self.sums)

    def _load(self, batch: AnyBatch) -> None:
        assert self.batch is not None
        for field in fields(batch):
            value = getattr(batch, field.name)
            if isinstance(value, Tensor):
                getattr(self.batch, field.name).copy_(value, non_blocking=True)


@contextmanager
def compiled_layers(model: Transformer) -> Iterator[None]:
    """Layer by layer: one compilation serves all layers of a stack, however deep.

    Only while recording: the recording keeps the compiled kernels, and validation batches differ in shape, so that each
    would be compiled again.
    """
    layers = [*model.encoder.layers, *model.decoder.layers]
    for layer in layers:
        layer.compile(dynamic=False)
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
