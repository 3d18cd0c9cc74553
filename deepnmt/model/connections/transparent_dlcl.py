"""DLCL with an additional learned mixture for each decoder layer, as in transparent attention."""

from torch import Tensor, nn

from deepnmt.model.connections.connection import (
    Connection,
    ConnectionConfig,
    History,
    LearnedWeights,
    StackShape,
    StepMixture,
    lower_triangle,
)
from deepnmt.model.connections.dlcl import DlclHistory
from deepnmt.model.kernels.mixture import mix


class TransparentDlclConfig(ConnectionConfig):
    kind = "transparent-dlcl"


class TransparentDlclHistory(DlclHistory):
    """The tape computes the inputs of layers; `normed` has the outputs for the readers' mixtures."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(matrix, [nn.Identity() for _ in matrix])
        self.normed: list[Tensor] = []


class TransparentDlcl(Connection):
    """Layers as in DLCL; reader j gets sum_k W[N+j,k] LN_k(y_k), under post-norm LN(sum_k W[N+j,k] y_k) with one LN for
    all readers. All rows are initialised as means.

    If the rows of the readers are equal this is DLCL; if the rows inside are an identity, transparent attention.
    """

    Config = TransparentDlclConfig

    def __init__(self, config: TransparentDlclConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.num_layers, self.num_readers = shape.num_layers, shape.num_readers
        connected = lower_triangle(shape.num_layers + shape.num_readers)[:, : shape.num_layers + 1]
        self.register_buffer("connected", connected, persistent=False)
        self.weight = nn.Parameter(connected / connected.sum(1, keepdim=True))
        # The norm of y_k (pre) or of row k (post), as in DLCL.
        new_norms = [shape.new_norm if k else nn.Identity for k in range(shape.num_layers + 1)]
        self.norms = nn.ModuleList(new_norm(shape.dim) for new_norm in new_norms)
        self.norms_outputs = shape.norm == "pre"

    def begin(self) -> TransparentDlclHistory:
        inside = self._effective()[: self.num_layers, : self.num_layers]
        return TransparentDlclHistory(inside.unsqueeze(2))

    def write(self, history: History, output: Tensor) -> None:
        assert isinstance(history, TransparentDlclHistory)
        depth = len(history.normed)
        history.normed.append(self.norms[depth](output) if self.norms_outputs else output)
        if depth < self.num_layers:
            history.append(history.tape.enter(history.normed[-1]))

    def read(self, history: History) -> Tensor:
        assert isinstance(history, TransparentDlclHistory)
        if len(history.normed) > self.num_layers:
            return self.memories(history)[0]
        row = len(history) - 1
        mixed = history.tape.mix(history, row)
        return mixed if self.norms_outputs else self.norms[row](mixed)

    def memories(self, history: History) -> list[Tensor]:
        assert isinstance(history, TransparentDlclHistory)
        rows = self._effective()[self.num_layers :]
        mixed = [mix(history.normed, row.unsqueeze(1)) for row in rows]
        return mixed if self.norms_outputs else [self.norms[-1](memory) for memory in mixed]

    def matrix(self) -> Tensor:
        return self._effective().detach().cpu()

    def step_mixture(self) -> StepMixture | None:
        return StepMixture(self._effective(), list(self.norms)) if self.num_readers == 1 else None

    def learned_weights(self) -> LearnedWeights:
        layers, readers = range(1, self.num_layers + 1), range(1, self.num_readers + 1)
        return LearnedWeights(
            self.matrix(),
            (*(f"x{row}" for row in layers), *(f"reader {j}" for j in readers)),
            (*(f"layer {row}" for row in layers), *(f"reader {j}" for j in readers)),
        )

    def _effective(self) -> Tensor:
        return self.weight.float() * self.get_buffer("connected")
