"""The gradient of each encoder layer at initialisation and over the first steps, by norm and connection."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from deepnmt.analysis.charts import Axes, Series, line_chart
from deepnmt.analysis.config import GradientTrial
from deepnmt.analysis.size import describe
from deepnmt.columns import ShownAsText, aligned, comma_separated
from deepnmt.config import Recipe
from deepnmt.data.batching import BatchingConfig, BatchStream
from deepnmt.data.dataset import Corpus
from deepnmt.model.config import CONNECTION_CONFIGS, ModelConfig
from deepnmt.model.transformer import Transformer
from deepnmt.training.assembly import build_training
from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import World
from deepnmt.training.trainer import step as take_step

MAX_LENGTH = 100
HEAD_DIM = 16


@dataclass(frozen=True)
class Step:
    """Norms by encoder layer, lowest first: of the gradient of its parameters, and of its output y_l (y_0 first)."""

    step: int
    loss: float  # per target token, smoothed, in nats
    parameters: list[float]
    outputs: list[float]


@dataclass(frozen=True)
class Gradients:
    """The measurements of one model: `steps[0]` is at initialisation."""

    name: str
    steps: list[Step]

    def ratio(self, step: int) -> float:
        """The share of the gradient that reaches the bottom: dE/dy of the embedding over that of the top layer."""
        outputs = self.steps[step].outputs
        return outputs[0] / outputs[-1] if outputs[-1] else math.nan


@dataclass(frozen=True)
class GradientReport(ShownAsText):
    """The measurements of every arm; `model` is the recipe's, as it was measured."""

    name: str
    model: ModelConfig
    found: list[Gradients]

    @property
    def heading(self) -> str:
        return f"{self.name}: {describe(self.model)}"

    def __str__(self) -> str:
        note = (
            "Norms of the gradient of each encoder layer's parameters;\n"
            "bottom/top is the norm of dE/dy at the embedding over that at the top layer."
        )
        return f"{self.heading}\n\n{to_text(self.found)}\n\n{note}"


def arms(model: ModelConfig) -> dict[str, ModelConfig]:
    """The recipe's model with pre-norm and post-norm, and post-norm with residual and with DLCL connections.

    Before them the recipe's own, if it has another scheme around its sub-layers.
    """
    own, scheme = model.encoder.connection.kind, model.sublayer_of(model.encoder).kind
    plain = _with_stacks(model, sublayer=None)
    pre, post = replace(plain, norm="pre"), replace(plain, norm="post")
    found = {} if scheme in ("pre", "post") else {f"{scheme}, {own}": model}
    found |= {f"pre-norm, {own}": pre, f"post-norm, {own}": post}
    for kind in ("residual", "dlcl"):
        found.setdefault(f"post-norm, {kind}", _with_stacks(post, connection=CONNECTION_CONFIGS[kind]()))
    return found


def narrowed(model: ModelConfig, width: int) -> ModelConfig:
    """The same depth at a width that is fast on a CPU; the behaviour of the gradient depends on the depth."""
    encoder, decoder = (
        replace(
            stack,
            dim=width * max(stack.dim // model.decoder.dim, 1),
            ffn_dim=stack.ffn_dim * width * max(stack.dim // model.decoder.dim, 1) // stack.dim,
            num_heads=max(width // HEAD_DIM, 1),
        )
        for stack in (model.encoder, model.decoder)
    )
    return replace(model, encoder=encoder, decoder=decoder)


def with_short_warmup(training: TrainingConfig, steps: int) -> TrainingConfig:
    """The recipe's learning rates, with the warm-up shortened to half of `steps`."""
    return replace(training, warmup_steps=min(training.warmup_steps, max(steps // 2, 1)))


def _with_stacks(model: ModelConfig, **settings: Any) -> ModelConfig:
    """The model with these settings in both stacks."""
    return replace(model, encoder=replace(model.encoder, **settings), decoder=replace(model.decoder, **settings))


def measure_gradients(
    name: str,
    model: ModelConfig,
    training: TrainingConfig,
    corpora: Mapping[str, Corpus],
    trial: GradientTrial,
    done: Callable[[int], None] = lambda count: None,
) -> Gradients:
    """Train a new model and measure its gradients before each update and after the last."""
    world = World(0, 1, torch.device("cpu"))
    batching = BatchingConfig(tokens_per_batch=trial.tokens, max_length=MAX_LENGTH)
    training = replace(training, precision="fp32", freeze=(), lora=None)  # which are for trained models
    recipe = Recipe(model=model, training=training, batching=batching)
    updates = BatchStream(corpora, batching, seed=training.seed, tokens_per_update=trial.tokens)
    state, engine = build_training(recipe, world, recipe.model, stream=updates)

    found = []
    for step in range(trial.steps + 1):
        update = next(updates)
        with _watched(state.model) as outputs:
            sums, norms = take_step(state, update, engine)
        layers = norms.by_layer()
        by_layer = [layers[f"encoder.layers.{depth}"] for depth in range(model.encoder.num_layers)]
        loss = float(sums[0]) / update.num_target_tokens
        found.append(Step(step, loss, by_layer, [math.sqrt(square) for square in outputs]))
        done(1)
    return Gradients(name, found)


@contextmanager
def _watched(network: nn.Module) -> Iterator[list[float]]:
    """Collect the squared norms of dE/dy_l of the encoder during a backward pass."""
    assert isinstance(network, Transformer)
    squares = [0.0] * (network.config.encoder.num_layers + 1)

    def watch(depth: int, output: Tensor) -> None:
        def add(gradient: Tensor) -> None:
            squares[depth] += float(gradient.float().square().sum())

        output.register_hook(add)

    handles = [network.encoder.register_forward_pre_hook(lambda module, given: watch(0, given[0]))]
    for depth, layer in enumerate(network.encoder.layers, start=1):
        handles.append(layer.register_forward_hook(lambda module, given, output, depth=depth: watch(depth, output)))
    try:
        yield squares
    finally:
        for handle in handles:
            handle.remove()


def draw(found: Sequence[Gradients]) -> list[str]:
    """Charts by layer at initialisation and after the last step, and of the share that reaches the bottom over time."""
    last = found[0].steps[-1].step
    drawn = []
    for index, when in [(0, "at initialisation")] + ([(-1, f"after {last} steps")] if last else []):
        series = [Series(g.name, list(enumerate(g.steps[index].parameters, start=1))) for g in found]
        title, across = f"Gradient of each encoder layer {when}", "encoder layer (1 is the lowest)"
        drawn.append(line_chart(series, Axes(title, across, "norm of its parameters' gradient", log_y=True)))
    if last:
        series = [Series(g.name, [(s.step, g.ratio(i)) for i, s in enumerate(g.steps)]) for g in found]
        title, up = "Gradient that reaches the bottom of the encoder", "norm of dE/dy, embedding over top layer"
        drawn.append(line_chart(series, Axes(title, "step", up, log_y=True)))
    return drawn


def to_text(found: Sequence[Gradients]) -> str:
    """One row per layer; for each model the norm at initialisation and after the last step."""
    last = found[0].steps[-1].step
    moments = [(0, "start")] + ([(-1, f"step {last}")] if last else [])
    head = ["layer", *(f"{g.name}, {when}" for g in found for _, when in moments)]
    depths = range(len(found[0].steps[0].parameters))
    rows = [
        [str(depth + 1), *(f"{g.steps[i].parameters[depth]:.2e}" for g in found for i, _ in moments)]
        for depth in depths
    ]
    shares = ["bottom/top", *(f"{g.ratio(i):.1e}" for g in found for i, _ in moments)]
    return aligned([head, *rows, shares])


def to_csv(found: Sequence[Gradients]) -> str:
    """One line per layer and step; layer 0 is the embedding, with an output and no parameters."""
    rows: list[Sequence[object]] = []
    for gradients in found:
        for step in gradients.steps:
            of_layers = ["", *(f"{norm:.6g}" for norm in step.parameters)]
            for depth, (of_parameters, of_output) in enumerate(zip(of_layers, step.outputs, strict=True)):
                rows.append([gradients.name, step.step, f"{step.loss:.4f}", depth, of_parameters, f"{of_output:.6g}"])
    head = ["model", "step", "loss", "layer", "parameter_gradient_norm", "output_gradient_norm"]
    return comma_separated([head, *rows])
