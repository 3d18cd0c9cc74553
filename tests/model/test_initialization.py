"""The authors' initialisation, in numbers."""

import math

import torch
from model_variants import NORMS, tiny_config
from pytest import fixture, mark

from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.fusion import FusionConfig
from deepnmt.model.transformer import Transformer

DIM, FFN = 128, 256


@fixture(scope="module")
def model():
    torch.manual_seed(0)
    stack = StackConfig(num_layers=2, dim=DIM, ffn_dim=FFN, num_heads=4, connection=DlclConfig())
    return Transformer(
        ModelConfig(
            source_vocab_size=500,
            target_vocab_size=400,
            encoder=stack,
            decoder=stack,
            tie_output=False,
            positions="learned",
            max_positions=300,
        )
    )


def assert_uniform(weight, bound):
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.98 * bound
    assert math.isclose(weight.std().item(), bound / math.sqrt(3), rel_tol=0.03)
    assert abs(weight.mean().item()) < 0.02 * bound


def xavier(rows, columns):
    return math.sqrt(6 / (rows + columns))


def test_packed_projections_are_xavier_of_one_matrix_of_three_times_the_width(model):
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        assert_uniform(layer.attention.input.weight, xavier(3 * DIM, DIM))
    for layer in model.decoder.layers:
        assert_uniform(layer.cross_attention.query.weight, xavier(3 * DIM, DIM))
        assert_uniform(layer.cross_attention.key_value.weight, xavier(3 * DIM, DIM))


def test_other_linear_layers_are_xavier(model):
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        assert_uniform(layer.attention.output.weight, xavier(DIM, DIM))
        assert_uniform(layer.feed_forward.expand.weight, xavier(FFN, DIM))
        assert_uniform(layer.feed_forward.contract.weight, xavier(DIM, FFN))


def test_both_halves_of_a_gated_layer_are_xavier_of_their_own():
    stack = StackConfig(num_layers=1, dim=DIM, ffn_dim=FFN, num_heads=4)
    config = ModelConfig(source_vocab_size=9, target_vocab_size=9, encoder=stack, decoder=stack, activation="swiglu")
    assert_uniform(Transformer(config).encoder.layers[0].feed_forward.expand.weight, xavier(FFN, DIM))


def test_keys_and_values_of_another_width_are_xavier_of_their_own():
    config = ModelConfig(
        source_vocab_size=9,
        target_vocab_size=9,
        encoder=StackConfig(num_layers=1, dim=2 * DIM, ffn_dim=FFN, num_heads=4),
        decoder=StackConfig(num_layers=1, dim=DIM, ffn_dim=FFN, num_heads=4),
    )
    attention = Transformer(config).decoder.layers[0].cross_attention
    assert_uniform(attention.query.weight, xavier(DIM, DIM))
    assert_uniform(attention.key_value.weight, xavier(DIM, 2 * DIM))


def test_embeddings_are_normal_of_one_over_root_width(model):
    """Padding too: the authors do not zero it, and where the output is tied its row is trained like any other."""
    tables = [model.source_embedding.tokens, model.target_embedding.tokens, model.source_embedding.positions]
    for weight in (model.output_weight, *(table.weight for table in tables)):
        assert math.isclose(weight.std().item(), DIM**-0.5, rel_tol=0.03)
        assert weight.abs().max() > 3.5 * DIM**-0.5, "not a uniform distribution"
        assert weight[model.config.pad_id].any()


def test_biases_are_zero_and_norms_one(model):
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == (1.0 if name.endswith("weight") else 0.0)).all(), name
        elif name.endswith("bias"):
            assert not parameter.any(), name


@mark.parametrize("norm", NORMS)
def test_row_l_of_dlcl_starts_as_the_mean_of_what_it_sees(norm):
    model = Transformer(tiny_config(norm=norm, encoder=DlclConfig(), decoder=DlclConfig(window=2)))
    for row in range(4):
        expected = torch.tensor([1 / (row + 1)] * (row + 1) + [0.0] * (3 - row))
        torch.testing.assert_close(model.encoder.connection.matrix()[row], expected)
    torch.testing.assert_close(model.decoder.connection.matrix()[2], torch.tensor([0, 1 / 2, 1 / 2]))
    fusion = Transformer(tiny_config(encoder=FusionConfig())).encoder.connection
    torch.testing.assert_close(fusion.weight, torch.full((4, 1), 1 / 4))


def test_a_seed_decides_everything():
    models = []
    for _ in range(2):
        torch.manual_seed(7)
        models.append(Transformer(tiny_config()))
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
