"""The feed-forward layer and attention, against their equations."""

import math

import torch
from model_variants import DIM, padded, scrambled, sentences, tiny_config
from pytest import fixture, mark

from deepnmt.model.attention import KeysValues, attend_padded
from deepnmt.model.layers import ACTIVATIONS, FeedForward
from deepnmt.model.transformer import Transformer

EQUATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "swish": lambda x: x / (1 + torch.exp(-x)),
    "swiglu": lambda x: x[..., :24] / (1 + torch.exp(-x[..., :24])) * x[..., 24:],
}


@mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_is_its_equation(activation):
    torch.manual_seed(0)
    layer = FeedForward(DIM, 24, 0.0, activation).double()
    x = torch.randn(3, 5, DIM, dtype=torch.float64)
    inner = x @ layer.expand.weight.T + layer.expand.bias
    expected = EQUATIONS[activation](inner) @ layer.contract.weight.T + layer.contract.bias
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-10)


def test_dropout_of_the_feed_forward_layer_is_inside():
    layer = FeedForward(DIM, 24, 0.5, "relu")
    with torch.no_grad():
        layer.expand.weight.zero_()
        layer.expand.bias.fill_(1.0)
        layer.contract.weight.fill_(1.0)
        layer.contract.bias.zero_()
    assert (layer(torch.zeros(100, DIM)) % 2 == 0).all(), "the sum of inner units, each zero or doubled"
    assert layer(torch.zeros(100, DIM)).unique().numel() > 5
    assert (layer.eval()(torch.zeros(100, DIM)) == 24).all()


def test_attention_is_its_equation():
    torch.manual_seed(0)
    query, keys, values = (torch.randn(2, length, 3, 4, dtype=torch.float64) for length in (5, 6, 6))
    visible = torch.rand(2, 1, 5, 6) > 0.3
    visible[..., 0] = True
    products = torch.einsum("bthd,bshd->bhts", query, keys) / 2
    weights = products.masked_fill(~visible, -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshd->bthd", weights, values)
    attended = attend_padded(query, KeysValues(keys, values), 0.0, visible=visible)
    torch.testing.assert_close(attended, expected, rtol=1e-10, atol=1e-10)


@fixture
def ids():
    return padded(sentences(6, 4)), padded(sentences(5, 3, seed=2))


@mark.parametrize("name", ["dropout", "attention_dropout", "ffn_dropout"])
def test_each_dropout_acts_in_training_only(name, ids):
    torch.manual_seed(0)
    model = Transformer(tiny_config(**{name: 0.5}))
    plain = Transformer(tiny_config())
    plain.load_state_dict(model.state_dict())
    assert not torch.equal(model.train()(*ids), model(*ids))
    assert torch.equal(model.eval()(*ids), plain.eval()(*ids))


def test_learned_positions_tell_orders_apart(ids):
    model = scrambled(tiny_config(positions="learned", max_positions=10))
    source, target = ids
    turned = source.clone()
    turned[0, :6] = source[0, :6].flip(0)
    assert not torch.allclose(model(source, target)[0], model(turned, target)[0])
    with torch.no_grad():
        model.source_embedding.positions.weight.zero_()
    torch.testing.assert_close(model(source, target)[0], model(turned, target)[0], rtol=1e-9, atol=1e-9)
