"""The engine of a GPU: packed batches, compiled layers, and one CUDA graph for the whole forward and backward pass.

A packed batch always has the same shapes, so the launches of one pass are recorded once and replayed for every batch:
the host is out of the way, which is most of the time of a small model and a good part of a large one's. `EagerEngine`
is the plain twin.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields

import torch
from torch import Tensor

from deepnmt.data.batching import Update
from deepnmt.data.collate import AnyBatch
from deepnmt.model.transformer import Transformer
from deepnmt.training.config import Precision, TrainingConfig
from deepnmt.training.distributed import World
from deepnmt.training.engine import Noise, Objective, zero_gradients
from deepnmt.training.memory import Splitter
from deepnmt.training.precision import autocast

WARM_UPS = 3  # passes before recording: compilation, libraries' work spaces


class GraphEngine:
    def __init__(self, objective: Objective, config: TrainingConfig, precision: Precision, world: World) -> None:
        self.objective, self.precision, self.world = objective, precision, world
        self.splitter = Splitter()  # a packed batch cannot be split
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        self.sums = torch.zeros(2, dtype=torch.float64, device=world.device)
        self.factor = torch.zeros((), device=world.device)
        self.batch: AnyBatch | None = None
        self.graph = torch.cuda.CUDAGraph()
        self.compiles = config.compile

    def accumulate(self, update: Update, scale: Tensor, noise: Noise) -> Tensor:
        if self.batch is None:
            self._record(update.batches[0])
        zero_gradients(self.parameters)
        self.sums.zero_()
        self.factor.copy_(scale / update.num_target_tokens)
        for batch in update.batches:
            self._load(batch)
            noise.seed_for(batch)
            self.graph.replay()
        return self.sums.clone()

    def _record(self, example: AnyBatch) -> None:
        self.batch = example.to(self.world.device)
        zero_gradients(self.parameters)
        with compiled_layers(self.objective) if self.compiles else nullcontext():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    self._pass(self.batch)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self.graph):
                self._pass(self.batch)

    def _pass(self, batch: AnyBatch) -> None:
        with autocast(self.precision, self.world.device):
            loss, nll = self.objective(batch)
        (loss * self.factor).backward()
        self.sums += torch.stack([loss.detach(), nll])

    def _load(self, batch: AnyBatch) -> None:
        assert self.batch is not None
        for field in fields(batch):
            value = getattr(batch, field.name)
            if isinstance(value, Tensor):
                getattr(self.batch, field.name).copy_(value, non_blocking=True)


@contextmanager
def compiled_layers(objective: Objective) -> Iterator[None]:
    """Layer by layer: one compilation serves all layers of a stack, however deep.

    Only while recording: the recording holds the compiled kernels, and validation, with a shape for every batch, would
    be compiled again and again.
    """
    model: Transformer = objective.model  # type: ignore[assignment]
    layers = [*model.encoder.layers, *model.decoder.layers]
    for layer in layers:
        layer.compile(dynamic=False)
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
