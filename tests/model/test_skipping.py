"""Layers and sub-layers that training leaves out: how often, with which mean, and not in evaluation unless asked."""

from contextlib import ExitStack
from dataclasses import replace

import torch
from model_variants import CASE_IDS, CASES, DIM, NORMS, case_config, padded, scrambled, sentences, tiny_config
from pytest import fail, mark, raises

from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.skipping import Skip, bypassed
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer


def with_dropout(config: ModelConfig, **settings: float) -> ModelConfig:
    stacks = {side: replace(getattr(config, side), **settings) for side in ("encoder", "decoder")}
    return replace(config, **stacks)


def a_pass(model: Transformer) -> torch.Tensor:
    torch.manual_seed(5)
    return model(padded(sentences(7, 4)), padded(sentences(5, 6, seed=2)))


@mark.parametrize("norm", NORMS)
@mark.parametrize("setting", ["layer_dropout", "sublayer_dropout"])
def test_evaluation_has_every_layer_and_without_the_setting_training_too(norm, setting):
    config = tiny_config(norm=norm, dropout=0.1)
    plain, skipping = scrambled(config), scrambled(with_dropout(config, **{setting: 0.5}))
    assert torch.equal(a_pass(skipping), a_pass(plain))
    off = scrambled(with_dropout(config, **{setting: 0.0})).train()
    assert torch.equal(a_pass(off), a_pass(plain.train()))
    assert not torch.equal(a_pass(skipping.train()), a_pass(plain))


def test_sub_layer_i_of_n_is_skipped_with_probability_i_over_n():
    """Li et al. 2021: the first hardly ever, the last with probability P."""
    model = Transformer(with_dropout(tiny_config(), sublayer_dropout=0.6))
    skips = [module.p for module in model.encoder.modules() if isinstance(module, Skip)]
    torch.testing.assert_close(torch.tensor(skips), 0.6 * torch.arange(1, 7) / 6)
    found = [around.skip.p for around, _ in model.decoder.layers[1].sublayers()]
    torch.testing.assert_close(torch.tensor(found), 0.6 * torch.tensor([4, 5, 6]) / 6)


def test_a_skipped_branch_has_the_mean_of_evaluation():
    skip, x = Skip(0.3).train(), torch.tensor([2.0, -1.0])
    calls = []
    torch.manual_seed(1)
    drawn = torch.stack([skip(lambda x: calls.append(1) or 3 * x, x) for _ in range(4000)])
    assert {tuple(row) for row in drawn.round(decimals=4).tolist()} == {
        (0.0, 0.0),
        tuple((3 * x / 0.7).round(decimals=4).tolist()),
    }
    torch.testing.assert_close(drawn.mean(0), 3 * x, rtol=0.05, atol=0)
    assert len(calls) == int((drawn[:, 0] != 0).sum()), "on a CPU what is skipped is not computed"


class Nothing(torch.nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


@mark.parametrize("kind", SUBLAYERS)
def test_a_skipped_branch_of_every_scheme_adds_nothing(kind):
    layer = scrambled(with_dropout(tiny_config(norm=kind), sublayer_dropout=0.5)).encoder.layers[1].train()
    (around, _), x = layer.sublayers()[0], torch.randn(3, DIM, dtype=torch.float64)
    around.skip.p = 1 - 1e-9
    skipped = around(x, lambda z: fail("computed"), x)
    around.skip.p, around.dropout = 0.0, Nothing()
    torch.testing.assert_close(around(x, lambda z: 3 * z, x), skipped)


def test_a_dropped_layer_returns_its_input_and_its_weights_get_no_gradient():
    config = with_dropout(tiny_config(), layer_dropout=0.5)
    model = scrambled(config).train()
    source = padded(sentences(7, 4))
    layers, ran = list(model.encoder.layers), []
    for number, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    torch.manual_seed(2)
    (found, *_) = model.encode(source).memories
    assert 0 < len(ran) < 3
    found.sum().backward()
    for number, layer in enumerate(layers):
        assert (layer.feed_forward.expand.weight.grad is not None) == (number in ran)
    x = model.source_embedding(source, torch.arange(source.shape[1]))
    for number in list(ran):
        x = layers[number](x, model._sequences(source).whole())
    torch.testing.assert_close(found, model.encoder.final_norm(x), rtol=1e-12, atol=1e-12)


def test_layers_are_dropped_as_often_as_asked():
    model = Transformer(with_dropout(tiny_config(), layer_dropout=0.2)).train()
    ran = []
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda *_: ran.append(1))
    source = padded(sentences(2))
    torch.manual_seed(1)
    for _ in range(500):
        model.encode(source)
    assert abs(len(ran) / 1500 - 0.8) < 0.03


@mark.parametrize("setting", ["layer_dropout", "sublayer_dropout"])
def test_recomputing_activations_skips_the_same(setting):
    model = scrambled(with_dropout(tiny_config(dropout=0.1), **{setting: 0.5})).train()
    gradients = []
    for on in (False, True):
        model.checkpoint_activations(on)
        model.zero_grad()
        a_pass(model).tanh().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        if gradient is not None:
            torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-6, atol=1e-6, msg=name)


def test_probabilities_outside_of_zero_and_one_are_refused():
    with raises(ValueError, match=r"sublayer_dropout = 1\.0 must be at least 0 and below 1"):
        StackConfig(sublayer_dropout=1.0)


@mark.parametrize(("variant", "norm", "stack"), CASES, ids=CASE_IDS)
def test_a_bypassed_layer_is_one_that_writes_its_input(variant, norm, stack):
    """For every scheme, with the loop of the stack written out."""
    model = scrambled(case_config(variant, norm, stack))
    source = model._sequences(padded(sentences(7, 4)))
    visibility = source.whole()
    visibility.rotation = model._rotation(source.positions(), model.config.encoder)
    encoder, connection = model.encoder, model.encoder.connection
    for bypass in range(3):
        with bypassed(encoder.layers[bypass]):
            found = model.encode(source).memories
        history = connection.begin()
        connection.write(history, encoder.embedding_norm(model.source_embedding(source.ids, source.positions())))
        for number, layer in enumerate(encoder.layers):
            x = connection.read(history)
            connection.write(history, x if number == bypass else layer(x, visibility))
        expected = [encoder.final_norm(memory) for memory in connection.memories(history)]
        for one, other in zip(found, expected * (len(found) // len(expected)), strict=True):
            assert torch.equal(one, other)


@mark.parametrize("norm", NORMS)
def test_a_stack_whose_layers_are_all_bypassed_is_one_that_training_skips(norm):
    model = scrambled(with_dropout(tiny_config(norm=norm), layer_dropout=0.5))
    with ExitStack() as stack:
        for layer in [*model.encoder.layers, *model.decoder.layers]:
            stack.enter_context(bypassed(layer))
        found = a_pass(model)
    model.train().encoder.layer_drop.p = model.decoder.layer_drop.p = 1.0
    assert torch.equal(found, a_pass(model))
    model.eval()
    assert not torch.equal(found, a_pass(model)), "outside, nothing is bypassed"


@mark.parametrize("norm", NORMS)
@mark.parametrize("side", ["encoder", "decoder"])
def test_a_residual_stack_without_a_layer_is_a_shallower_one(norm, side):
    model = scrambled(tiny_config(norm=norm))
    with bypassed(getattr(model, side).layers[1]):
        found = a_pass(model)
    del getattr(model, side).layers[1]
    if side == "decoder":
        model.config = replace(model.config, decoder=replace(model.config.decoder, num_layers=1))
    assert torch.equal(found, a_pass(model))
