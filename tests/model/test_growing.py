"""A deeper model from a shallow one: which layers it repeats, and what its connection takes over."""

from dataclasses import replace

import torch
from model_variants import POSITIONS, VARIANTS, padded, scrambled, sentences, tiny_config
from pytest import mark, raises

from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.sparse_dlcl import SparseDlclConfig
from deepnmt.model.growing import check_growth, deepened

GROWING = [name for name, config in VARIANTS.items() if CONNECTIONS[config.kind].grows and "sparse" not in name]


@mark.parametrize("norm", ["pre", "post"])
@mark.parametrize("variant", GROWING)
def test_the_top_layers_are_there_twice(variant, norm):
    """From 3 to 5 layers: 1 2 3 2 3."""
    shallow = scrambled(tiny_config(encoder=VARIANTS[variant], norm=norm))
    deep = deepened(shallow, 5)
    assert len(deep.encoder.layers) == deep.config.encoder.num_layers == 5
    layers = [layer.state_dict() for layer in shallow.encoder.layers]
    for layer, origin in zip(deep.encoder.layers, (0, 1, 2, 1, 2), strict=True):
        for name, tensor in layer.state_dict().items():
            assert torch.equal(tensor, layers[origin][name].float()), name
    source, target = padded(sentences(6, 4)), padded(sentences(5, 6, seed=2))
    assert deep(source, target).isfinite().all()
    assert torch.equal(deep.output_weight, shallow.output_weight.float())


def test_the_residual_stack_is_the_layers_one_after_the_other():
    shallow = scrambled(tiny_config(**POSITIONS["relative"]), torch.float32)
    source = sentences(6)[0][None]
    x = shallow.source_embedding(source, torch.arange(6))
    visibility = shallow._sequences(source).whole()
    for layer in (0, 1, 2, 1, 2):
        x = shallow.encoder.layers[layer](x, visibility)
    (found, *_) = deepened(shallow, 5).encode(source).memories
    torch.testing.assert_close(found, shallow.encoder.final_norm(x))


def test_dlcl_keeps_its_rows_and_starts_those_of_the_new_layers():
    shallow = scrambled(tiny_config(encoder=DlclConfig())).float()
    deep = deepened(shallow, 5).encoder.connection
    learned, norms = shallow.encoder.connection.weight[..., 0], shallow.encoder.connection.norms
    expected = torch.zeros(6, 6)
    expected[:4, :4] = learned
    for row in (4, 5):
        expected[row, : row + 1] = 1 / (row + 1)
    torch.testing.assert_close(deep.weight[..., 0] * deep.connected[..., 0], expected.tril())
    for k, origin in ((1, 1), (3, 3), (4, 2), (5, 3)):  # y_4 is made by layer 2 again
        assert torch.equal(deep.norms[k].weight, norms[origin].weight)


def test_sparse_dlcl_grows_by_whole_blocks():
    """Li et al. 2020: the new block has a row and a column of its own."""
    config = SparseDlclConfig(block=3)
    shallow = scrambled(tiny_config(encoder=config)).float()
    deep, before = deepened(shallow, 6).encoder.connection, shallow.encoder.connection
    assert (before.ends, deep.ends) == ([0, 3], [0, 3, 6])
    assert torch.equal(deep.weight[:2, :2], before.weight)
    torch.testing.assert_close(deep.weight[2, :, 0], torch.full((3,), 1 / 3))
    assert torch.equal(deep.norms[2].weight, before.norms[1].weight)
    config.check_growth((3, 6))
    with raises(ValueError, match=r"training\.grow = \[3, 5\] must have multiples of encoder\.connection\.block = 3"):
        config.check_growth((3, 5))


@mark.parametrize("kind", [kind for kind, scheme in CONNECTIONS.items() if not scheme.grows])
def test_other_connections_are_refused_by_name(kind):
    config = tiny_config(encoder=CONNECTIONS[kind].Config())
    with raises(ValueError, match=f"training.grow does not support encoder.connection = '{kind}'; use one"):
        check_growth(config, (3, 6))


def test_schemes_around_sub_layers_that_depend_on_the_depth_are_refused():
    with raises(ValueError, match=r"does not support encoder\.sublayer = 'deepnorm', which depends on the depth"):
        check_growth(replace(tiny_config(), norm="deepnorm"), (3, 6))
