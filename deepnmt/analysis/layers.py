"""What each layer of a trained model contributes to its loss and to its representations, on real sentences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.analysis.charts import Axes, Series, heat_map, line_chart
from deepnmt.analysis.similarity import Similarity
from deepnmt.analysis.weights import StackMatrix
from deepnmt.columns import ShownAsText, aligned, comma_separated
from deepnmt.decoding.likelihood import ForcedBatch
from deepnmt.model.skipping import bypassed
from deepnmt.model.transformer import Stack, Transformer
from deepnmt.training.validation import perplexity

NOTE = """importance: increase of the loss when this layer alone is bypassed, ± its standard error; cosine, change: of
the layer's output y with its input x, and |y - x| / |x|; norm: |y|; exit loss: the loss if the stack ended
after this layer. Losses are in nats per target subword, the others means over subwords. Layer 0 is the embedding."""

CHARTS = (
    ("importance", "loss without the layer", "increase, nats per target subword"),
    ("exit_loss", "loss if the stack ended after the layer", "nats per target subword"),
    ("change", "change from input to output", "|y - x| / |x|"),
    ("norm", "norm of the output", "|y|"),
)


@dataclass(frozen=True)
class LayerUse:
    """A layer with input x and output y. Layer 0 is the embedding, which has no input."""

    layer: int
    importance: float | None  # increase of the loss without the layer, nats per target subword
    standard_error: float | None  # of the importance, over sentences
    cosine: float | None  # of x and y, the mean over subwords
    change: float | None  # |y - x| / |x|, the mean over subwords
    norm: float  # |y|, the mean over subwords
    exit_loss: float  # if the stack ended after this layer, nats per target subword


@dataclass(frozen=True)
class StackUse:
    """The layers of an encoder or a decoder, and the linear CKA between their outputs y_0 (the embedding), y_1, ..."""

    stack: str
    layers: list[LayerUse]
    similarity: list[list[float]]

    def similarity_by_name(self) -> StackMatrix:
        """For printing, with names of rows and columns."""
        names = tuple(f"y{layer.layer}" for layer in self.layers)
        return StackMatrix(self.stack, "similarity of outputs (linear CKA)", self.similarity, names, names)


@dataclass(frozen=True)
class LayerReport(ShownAsText):
    """The use of the layers of a MODEL, over a sample of sentence pairs. As text: a table for each stack."""

    model: str
    about: str
    sentences: int
    source_subwords: int
    target_subwords: int
    loss: float  # nats per target subword
    stacks: list[StackUse]

    def __str__(self) -> str:
        sample = (
            f"{self.sentences:,} pairs, {self.source_subwords:,} source and {self.target_subwords:,} target subwords"
        )
        loss = f"loss {self.loss:.4f} nats per target subword, perplexity {perplexity(self.loss):.2f}"
        return "\n\n".join([f"{self.model}: {self.about}", f"{sample}\n{loss}", *map(_table, self.stacks), NOTE])


class _Sums:
    """Sums over the subwords of one stack, and the losses of sentences with changes to it."""

    def __init__(self, stack: Stack, dim: int, device: torch.device) -> None:
        count = len(stack.layers)
        self.similarity = Similarity(count + 1, dim, device)
        self.cosine, self.change, self.norm = (
            torch.zeros(size, dtype=torch.float64, device=device) for size in (count, count, count + 1)
        )
        self.losses: list[Tensor] = []  # by batch: (2 * layers, B), without each layer, then of exits before each

    def add(self, trace: "_Trace", is_token: Tensor, losses: Iterable[Tensor]) -> None:
        """is_token: (B, T), False for padding"""
        inputs, outputs = ([_wide(x[is_token]) for x in each] for each in (trace.inputs, trace.outputs))
        self.similarity.add(outputs)
        for layer, (x, y) in enumerate(zip(inputs, outputs[1:], strict=True)):
            self.cosine[layer] += F.cosine_similarity(x, y, dim=-1).sum()
            self.change[layer] += ((y - x).norm(dim=-1) / x.norm(dim=-1)).sum()
        self.norm += torch.stack([y.norm(dim=-1).sum() for y in outputs])
        self.losses.append(torch.stack(list(losses)))

    def layers(self, whole: Tensor, subwords: Tensor) -> list[LayerUse]:
        """whole: (sentences,), their losses under the unchanged model; subwords: (sentences,), their target lengths"""
        total, tokens = subwords.sum(), self.similarity.tokens
        without, exits = torch.cat(self.losses, dim=1).chunk(2)
        rises = without - whole
        importance = rises.sum(1) / total
        residuals = rises - importance.unsqueeze(1) * subwords  # the standard error of a ratio of sums, linearised
        error = (residuals.square().sum(1) * len(subwords) / max(len(subwords) - 1, 1)).sqrt() / total
        of_layers = [importance, error, self.cosine / tokens, self.change / tokens]
        of_outputs = [self.norm / tokens, torch.stack([*exits, whole]).sum(1) / total]
        columns = [[None, *column.tolist()] for column in of_layers] + [column.tolist() for column in of_outputs]
        return [LayerUse(layer, *row) for layer, row in enumerate(zip(*columns, strict=True))]


@torch.inference_mode()
def measure_layers(
    model: Transformer, batches: Sequence[ForcedBatch], done: Callable[[int], None] = lambda count: None
) -> tuple[float, list[StackUse]]:
    """The loss of a model in evaluation mode, and the use of its layers; `done` is called for each of `num_passes`."""
    config, device = model.config, _wide(model.output_weight[:0]).device
    encoder, decoder = (_Sums(getattr(model, name), stack.dim, device) for name, stack in config.stacks.items())
    whole = torch.cat([_measure(model, batch, encoder, decoder, done) for batch in batches])
    subwords = torch.cat([batch.scored.sum(1).cpu() for batch in batches])
    stacks = [
        StackUse(name, sums.layers(whole, subwords), sums.similarity.matrix().tolist())
        for name, sums in zip(config.stacks, (encoder, decoder), strict=True)
    ]
    return float(whole.sum() / subwords.sum()), stacks


def num_passes(model: Transformer) -> int:
    """Losses that are computed of each batch."""
    return 1 + 2 * (len(model.encoder.layers) + len(model.decoder.layers))


def _measure(
    model: Transformer, batch: ForcedBatch, encoder: _Sums, decoder: _Sums, done: Callable[[int], None]
) -> Tensor:
    """Add a batch to the sums; return the losses of its sentences under the unchanged model: (B,)"""

    def loss(features: Tensor) -> Tensor:
        done(1)
        return -_wide(batch.log_probs(model.project(features))).sum(1).cpu()

    def translate_from(memory: Tensor) -> Tensor:
        return model.decode(batch.target_input, replace(encoded, memories=[memory] * len(encoded.memories)))

    with _traced(model.encoder) as of_encoder, _traced(model.decoder) as of_decoder:
        encoded = model.encode(batch.source)
        whole = loss(model.decode(batch.target_input, encoded))
    changed = _changed(
        model.encoder, of_encoder, lambda: model.features(batch.source, batch.target_input), translate_from
    )
    encoder.add(of_encoder, batch.source != model.config.pad_id, map(loss, changed))
    changed = _changed(model.decoder, of_decoder, lambda: model.decode(batch.target_input, encoded), nn.Identity())
    decoder.add(of_decoder, batch.scored, map(loss, changed))
    return whole


def _changed(
    stack: Stack, trace: "_Trace", run: Callable[[], Tensor], run_from: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    """The features of the model without each layer of the stack; then if the stack ended before each, at its input."""
    for layer in stack.layers:
        with bypassed(layer):
            features = run()
        yield features
    for x in trace.inputs:
        yield run_from(stack.final_norm(x))


def _wide(x: Tensor) -> Tensor:
    """In fp64, which not every accelerator has."""
    return (x if x.is_cuda else x.cpu()).double()


@dataclass(frozen=True)
class _Trace:
    """The inputs x_1, x_2, ... and outputs y_0 (the embedding), y_1, ... of a pass: (B, T, dim)"""

    inputs: list[Tensor]
    outputs: list[Tensor]


@contextmanager
def _traced(stack: Stack) -> Iterator[_Trace]:
    """Collect what the layers read and write, whatever connects them."""
    trace = _Trace([], [])

    def keep(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        trace.inputs.append(given[0])
        trace.outputs.append(output)

    handles = [stack.embedding_norm.register_forward_hook(lambda norm, given, output: trace.outputs.append(output))]
    handles += [layer.register_forward_hook(keep) for layer in stack.layers]
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def _table(use: StackUse) -> str:
    rows = [["layer", "importance", "±", "cosine", "change", "norm", "exit loss"]]
    for layer in use.layers:
        digits = {"importance": 4, "standard_error": 4, "cosine": 3, "change": 3, "norm": 2, "exit_loss": 4}
        values = [(getattr(layer, name), decimals) for name, decimals in digits.items()]
        cells = ("" if value is None else f"{value:.{decimals}f}" for value, decimals in values)
        rows.append([str(layer.layer), *cells])
    return f"{use.stack}\n{aligned(rows, slice(0, None))}"


def draw(report: LayerReport) -> list[str]:
    """Each measure over depth and then the similarities, for one stack beside the other: their scales differ."""
    pictures = []
    for name, title, label in CHARTS:
        for use in report.stacks:
            layers = [layer for layer in use.layers if getattr(layer, name) is not None]
            errors = [layer.standard_error or 0.0 for layer in layers] if name == "importance" else []
            series = Series(use.stack, [(layer.layer, getattr(layer, name)) for layer in layers], errors)
            axes = Axes(f"{use.stack.capitalize()}: {title}", "layer (0 is the embedding)", label)
            pictures.append(line_chart([series], axes))
    named = [use.similarity_by_name() for use in report.stacks]
    return pictures + [heat_map(one.matrix, one.rows, one.columns, one.title, mask=False, joint="and") for one in named]


def to_csv(report: LayerReport) -> str:
    """One line per layer, with its similarity to each layer of its stack."""
    deepest = max(len(use.layers) for use in report.stacks)
    rows = []
    for use in report.stacks:
        for layer, similarity in zip(use.layers, use.similarity, strict=True):
            values = [*asdict(layer).values(), *similarity]
            written = ["" if value is None else f"{value:.6g}" for value in values]
            rows.append([use.stack, *written, *[""] * (deepest - len(similarity))])
    head = ["stack", *LayerUse.__dataclass_fields__, *(f"similarity_y{k}" for k in range(deepest))]
    return comma_separated([head, *rows])
