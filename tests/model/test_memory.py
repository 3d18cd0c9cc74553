"""What autograd keeps for a stack grows linearly with depth."""

import torch
from model_variants import NORMS
from pytest import mark
from torch.autograd.graph import saved_tensors_hooks

from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS, Connection
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.transformer import Transformer

DIM = 64  # wide enough to hide one number for each position and pair of layers


class StackingDlcl(Connection):
    """The trap: multiplying a stacked history keeps a copy of all of it at every depth."""

    def __init__(self, num_layers):
        super().__init__(None, None)
        self.weight = torch.nn.Parameter(torch.ones(num_layers + 1, num_layers + 1))

    def read(self, history):
        row = self.weight[len(history) - 1, : len(history)]
        return (torch.stack(list(history)) * row[:, None, None, None]).sum(0)


def kept_bytes(depth, norm, connection, stacking=False):
    """The bytes of distinct storages, parameters not counted, that the backward pass of an encoder needs."""
    stack = StackConfig(num_layers=depth, dim=DIM, ffn_dim=DIM, num_heads=1, connection=connection)
    shallow = StackConfig(num_layers=1, dim=DIM, ffn_dim=DIM, num_heads=1)
    model = Transformer(
        ModelConfig(source_vocab_size=9, target_vocab_size=9, norm=norm, encoder=stack, decoder=shallow, dropout=0.0)
    )
    if stacking:
        model.encoder.connection = StackingDlcl(depth)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage  # holds on to it, so that its address is not used again
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model.encode(torch.randint(3, 9, (4, 32)))
    return sum(storage.nbytes() for storage in kept.values())


def growth(**options):
    """How many times more the layers 21 to 40 cost than the layers 11 to 20: two is linear, three and more is not."""
    at_10, at_20, at_40 = (kept_bytes(depth, **options) for depth in (10, 20, 40))
    return (at_40 - at_20) / (at_20 - at_10)


SCHEMES = {kind: scheme.Config() for kind, scheme in CONNECTIONS.items()} | {
    "dlcl-per-dimension": DlclConfig(groups=DIM),
    "dlcl-softmax": DlclConfig(softmax=True),
}


@mark.parametrize(
    ("scheme", "norm"),
    [
        (scheme, norm)
        for scheme, config in SCHEMES.items()
        for norm in NORMS
        if norm == "pre" or not CONNECTIONS[config.kind].needs_branches
    ],
)
def test_kept_activations_grow_linearly_with_depth(scheme, norm):
    assert 1.8 < growth(norm=norm, connection=SCHEMES[scheme]) < 2.2


def test_the_measure_catches_a_stacked_history():
    assert growth(norm="pre", connection=DlclConfig(), stacking=True) > 2.6
