"""The loss and the gradients of one update: the part of a step that has a faster twin on a GPU.

An engine leaves, in every parameter's `grad`, the gradient of scale * (loss summed over this rank's batches) / (target
tokens of the whole update on all ranks), so that two batches step like one and two ranks like one.
"""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from deepnmt.data.batching import Update
from deepnmt.data.collate import AnyBatch, PackedBatch
from deepnmt.errors import RunError
from deepnmt.model.sequences import PackedSequences
from deepnmt.model.transformer import Transformer
from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import GradientSum, World, await_gradients, is_sharded
from deepnmt.training.loss import chunked_loss, sampled_loss
from deepnmt.training.memory import Splitter, free_memory, is_out_of_memory
from deepnmt.training.mixed_precision import product_type
from deepnmt.training.optimizer import GradientNorms, gradient_norms

T = TypeVar("T")


class Noise:
    """Seeds dropout by the step and the batch: no random state to save, and the same noise on any number of ranks."""

    def __init__(self, *key: int) -> None:
        self.key = key

    def seed_for(self, batch: AnyBatch) -> None:
        """A batch is identified by its first sentence, which is in no other batch of the update."""
        text = " ".join(map(str, (*self.key, *batch.sentences[:1])))
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
        # torch.manual_seed would look at every kind of device, which takes a quarter of a millisecond.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)


class Objective(nn.Module):
    """A model and its loss as one module: everything computed for one batch, in mixed precision."""

    model: Transformer

    def __init__(self, model: Transformer, config: TrainingConfig, device: torch.device) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.dtype = product_type(config.precision, device)

    def forward(self, batch: AnyBatch) -> tuple[Tensor, Tensor]:
        """The sums of loss and nll over the batch's real targets."""
        config, pad_id = self.config, self.model.config.pad_id
        with self.autocast(batch.source.device):
            features, targets = self.model.features(*_sequences(batch)), batch.target_output
            r_drop = config.r_drop if self.model.training else 0.0
            if r_drop:  # two passes with different dropout, side by side
                features = torch.stack([features, self.model.features(*_sequences(batch))], dim=-2)
                targets = targets.repeat_interleave(2, dim=-1)
            given = features, self.model.output_weight, targets, config.label_smoothing, pad_id
            if self.model.training and config.sampled_softmax:
                return sampled_loss(*given, config.sampled_softmax, bias=self.model.output_bias)
            return chunked_loss(*given, bias=self.model.output_bias, r_drop=r_drop)

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, dtype=self.dtype, enabled=self.dtype is not torch.float32)


def _sequences(batch: AnyBatch) -> tuple[Tensor | PackedSequences, Tensor | PackedSequences]:
    """The source and target of a batch as the model takes them."""
    if isinstance(batch, PackedBatch):
        return (
            PackedSequences(batch.source, batch.source_offsets),
            PackedSequences(batch.target_input, batch.target_offsets),
        )
    return batch.source, batch.target_input


class EagerEngine:
    """Plain torch: batch by batch, in smaller pieces if one does not fit in memory."""

    def __init__(self, objective: Objective, world: World, splitter: Splitter | None = None) -> None:
        self.objective, self.config, self.world = objective, objective.config, world
        self.splitter = splitter or Splitter()
        self.take(objective.model)

    def take(self, model: Transformer) -> None:
        """Compute the gradients of this model from now on."""
        self.model = self.objective.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.gradient_sum = GradientSum(model, self.world)

    def accumulate(self, update: Update, scale: Tensor, noise: Noise) -> Tensor:
        """Compute the gradients of this rank's batches; return the sums of their loss and nll: (2,), float64."""
        factor = scale / update.num_target_tokens
        while True:
            batches = self.splitter.cut(update.batches)
            zero_gradients(self.parameters)
            sums = torch.zeros(2, dtype=torch.float64, device=self.world.device)
            failed = self.add_up(batches, factor, noise, sums)
            if failed is None:
                return sums
            # Outside the exception handler, the frames that hold the failed pass's memory are gone. A backward pass
            # may have failed halfway through the gradients, so all of them are computed again.
            free_memory(self.world.device)
            self.splitter.shrink(batches[failed], update.batches, self.world)

    def add_up(self, batches: list[AnyBatch], factor: Tensor, noise: Noise, sums: Tensor) -> int | None:
        """Forward and backward through every batch; returns the index of the one that did not fit, or None."""
        for number, batch in enumerate(batches):
            await_gradients(self.objective, number == len(batches) - 1)
            noise.seed_for(batch)
            try:
                loss, nll = self.objective(batch.to(self.world.device, non_blocking=True))
                if loss.requires_grad:  # unless all layers that are trained were skipped
                    (loss * factor).backward()
                sums += torch.stack([loss.detach(), nll])
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if is_sharded(self.objective):
                    raise RunError(
                        "out of memory, and a sharded rank cannot retry alone; lower batching.tokens_per_batch"
                    ) from error
                return number
        return None

    def norms(self, scale: Tensor) -> GradientNorms:
        """The norms of the summed gradients, without the `scale` that they carry."""
        return gradient_norms(self.model, scale)

    def finish(self, work: Callable[..., T], *numbers: float) -> T:
        """Do the rest of an update with these numbers from the host; `work` is the same at every step."""
        return work(*numbers)


def zero_gradients(parameters: list[nn.Parameter]) -> None:
    """In place, so that addresses stay; a parameter that no batch uses has a gradient of zeros."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    torch._foreach_zero_([p.grad for p in parameters if p.grad is not None])
