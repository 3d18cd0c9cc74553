"""The engine of a GPU: packed batches, compiled layers, and CUDA graphs for all that an update computes.

A packed batch always has the same shapes, so the kernel launches of one pass are recorded once and replayed for every
batch; what follows the last pass is recorded likewise. That removes the host's overhead, which dominates small models
and matters for large ones. `EagerEngine` is the plain twin.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepnmt.data.batching import Update
from deepnmt.data.collate import AnyBatch
from deepnmt.model.kernels.compilers import start_compilers
from deepnmt.model.kernels.graphs import Work, record_graph
from deepnmt.model.transformer import Transformer
from deepnmt.training.distributed import World
from deepnmt.training.engine import EagerEngine, Noise, Objective, T, zero_gradients
from deepnmt.training.memory import Splitter, free_memory, is_out_of_memory, sizes_of
from deepnmt.training.optimizer import GradientNorms
from deepnmt.training.stand_ins import StandIns

WARM_UPS = 3  # passes before recording
SPARE = 1 / 16  # share of a pass's memory left free


class GraphEngine(EagerEngine):
    """`record` turns work into its replay. If a pass does not fit in memory, smaller pieces are recorded.

    Only recording allocates memory, so a batch fails at its first pass or never. The sums and norms it returns are
    overwritten by the next update.
    """

    def __init__(
        self,
        objective: Objective,
        world: World,
        splitter: Splitter | None = None,
        record: Callable[..., Work] | None = None,
    ) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64, device=world.device)
        self.factor = torch.zeros((), device=world.device)
        self.is_first = torch.ones((), dtype=torch.int32, device=world.device)
        super().__init__(objective, world, splitter)
        # One stream for every recording: the matrix library keeps work spaces for each that it has ever seen.
        self.record = record or partial(record_graph, stream=torch.cuda.Stream(world.device))

    def take(self, model: Transformer) -> None:
        self.batch: AnyBatch | None = None  # the tensors that the recording reads
        self.replay: Work | None = None
        self.finishing: RecordedFinish | None = None
        self.stand_ins: StandIns | None = None
        free_memory(self.world.device)
        super().take(model)
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        zero_gradients(self.parameters)
        self.gradient_sum.prepare()
        self.stand_ins = StandIns(model, self.objective.dtype, [b.parameters for b in self.gradient_sum.buckets])

    def accumulate(self, update: Update, scale: Tensor, noise: Noise) -> Tensor:
        pieces, replay = self._recorded(update.batches)
        torch.div(scale, update.num_target_tokens, out=self.factor)
        for number, piece in enumerate(pieces):
            if number < 2:
                self.is_first.fill_(number == 0)
            self._load(piece)
            noise.seed_for(piece)
            replay()
        self.gradient_sum.start()
        return self.sums

    def finish(self, work: Callable[..., T], *numbers: float) -> T:
        if self.world.size > 1 and self.config.optimizer == "muon":  # ranks exchange matrices in the middle of it
            return super().finish(work, *numbers)
        self.finishing = self.finishing or RecordedFinish(work, self.record, self.world.device)
        result: T = self.finishing(*numbers)
        return result

    def norms(self, scale: Tensor) -> GradientNorms:
        if self.gradient_sum.buckets or self.stand_ins is None or self.world.device.type != "cuda":
            return super().norms(scale)
        return GradientNorms(self.names, self.stand_ins.norms() / scale)

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
        assert self.stand_ins is not None
        had_one = self.replay is not None
        self.batch = self.replay = None
        self.stand_ins.forget_gradients()
        if had_one:
            free_memory(self.world.device)
        try:
            self.batch = example.to(self.world.device)
            work = partial(self._run_pass, self.batch, self.stand_ins)
            with compiled_layers(self.objective.model) if self.config.compile else nullcontext():
                self.replay = self.record(work, warm_ups=WARM_UPS, spare=SPARE)
            self.stand_ins.locate_gradients()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self.batch = None
            self.stand_ins.forget_gradients()

    def _run_pass(self, batch: AnyBatch, stand_ins: StandIns) -> None:
        stand_ins.refresh()
        stand_ins.forget_gradients()
        add = partial(stand_ins.add_gradients, self.is_first)
        with stand_ins.in_place(), self.gradient_sum.marking(stand_ins.leaf_of, add):
            loss, nll = self.objective(batch)
            (loss * self.factor).backward()
        add()
        sums = torch.stack([loss.detach(), nll])
        self.sums.copy_(torch.where(self.is_first > 0, sums, self.sums + sums))

    def _load(self, batch: AnyBatch) -> None:
        assert self.batch is not None
        for field in fields(batch):
            value = getattr(batch, field.name)
            if isinstance(value, Tensor):
                getattr(self.batch, field.name).copy_(value, non_blocking=True)


class RecordedFinish:
    """What follows the gradients in an update: done as it is the first time, then recorded.

    Its numbers come from the host, in one transfer.
    """

    def __init__(self, work: Callable[..., Any], record: Callable[..., Work], device: torch.device) -> None:
        self.work, self.record, self.device = work, record, device
        self.numbers: Tensor | None = None
        self.replay: Work | None = None
        self.result: Any = None

    def __call__(self, *numbers: float) -> Any:
        sent = torch.tensor(numbers, dtype=torch.float64, pin_memory=self.device.type == "cuda")
        if self.numbers is None:
            self.numbers = sent.to(self.device)
            self._do()
            return self.result
        self.numbers.copy_(sent, non_blocking=True)
        if self.replay is None:
            self.replay = self.record(self._do, warm_ups=0)
        self.replay()
        return self.result

    def _do(self) -> None:
        assert self.numbers is not None
        self.result = self.work(*self.numbers.unbind())


@contextmanager
def compiled_layers(model: Transformer) -> Iterator[None]:
    """Layer by layer: one compilation serves all layers of a stack, however deep.

    Only while recording: the recording keeps the compiled kernels, and validation batches differ in shape, so that each
    would be compiled again.
    """
    start_compilers().join()
    layers = [model.source_embedding, model.target_embedding, *model.encoder.layers, *model.decoder.layers]
    for layer in layers:
        # The embedding's seed by torch's own kernel: else each of its elements would compute it again.
        layer.compile(dynamic=False, options={"fallback_random": True})
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
