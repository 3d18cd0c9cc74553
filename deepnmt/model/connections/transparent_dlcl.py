"""DLCL with an additional learned mixture for each decoder layer, as in transparent attention."""

from torch import Tensor, nn

from deepnmt.model.connections.connection import ConnectionConfig, LearnedWeights, Mixture, StackShape, lower_triangle
from deepnmt.model.connections.dlcl import Dlcl, DlclConfig, DlclHistory
from deepnmt.model.kernels.mixture import mix


class TransparentDlclConfig(ConnectionConfig):
    kind = "transparent-dlcl"


class TransparentDlclHistory(DlclHistory):
    """The tape computes the inputs of layers; `normed` has the outputs for the readers' mixtures."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(matrix, [nn.Identity() for _ in matrix])
        self.normed: list[Tensor] = []


class TransparentDlcl(Dlcl):
    """Layers as in DLCL; reader j gets sum_k W[N+j,k] LN_k(y_k), under post-norm LN(sum_k W[N+j,k] y_k) with one LN for
    all readers. All rows are initialised as means.

    If the rows of the readers are equal this is DLCL; if the rows inside are an identity, transparent attention.
    """

    Config = TransparentDlclConfig
    grows = False
    is_mixture = False  # with several readers

    def __init__(self, config: TransparentDlclConfig, shape: StackShape) -> None:
        super().__init__(DlclConfig(), shape)
        self.num_layers, self.num_readers = shape.num_layers, shape.num_readers
        self.connected = lower_triangle(shape.num_layers + shape.num_readers)[:, : shape.num_layers + 1]
        self.weight = nn.Parameter(self.connected / self.connected.sum(1, keepdim=True))

    def begin(self) -> TransparentDlclHistory:
        return TransparentDlclHistory(self.effective()[: self.num_layers, : self.num_layers].unsqueeze(2))

    def write(self, history: TransparentDlclHistory, output: Tensor) -> None:
        depth = len(history.normed)
        history.normed.append(self.norms[depth](output) if self.norms_outputs else output)
        if depth < self.num_layers:
            super().write(history, history.normed[-1])

    def read(self, history: TransparentDlclHistory) -> Tensor:
        return self.memories(history)[0] if len(history.normed) > self.num_layers else super().read(history)

    def memories(self, history: TransparentDlclHistory) -> list[Tensor]:
        mixed = [mix(history.normed, row.unsqueeze(1)) for row in self.effective()[self.num_layers :]]
        return mixed if self.norms_outputs else [self.norms[-1](memory) for memory in mixed]

    def matrix(self) -> Tensor:
        return self.effective().detach().cpu()

    def mixture(self) -> Mixture | None:
        return Mixture(self.effective().unsqueeze(2), list(self.norms)) if self.num_readers == 1 else None

    def learned_weights(self) -> LearnedWeights:
        layers, readers = range(1, self.num_layers + 1), [f"reader {j}" for j in range(1, self.num_readers + 1)]
        return LearnedWeights(
            self.matrix(), (*(f"x{row}" for row in layers), *readers), (*(f"layer {row}" for row in layers), *readers)
        )
