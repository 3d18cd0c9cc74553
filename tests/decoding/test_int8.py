"""int8 is exact in integers on every processor, close to fp32, and the same whatever else is in the batch."""

import pytest
import torch
from digits import reversed_digits

from deepnmt.decoding import int8
from deepnmt.decoding.int8 import Int8Linear, full_extremes, full_scales, pair_extremes, pair_scales, scales_for
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError

GRIDS = {"exact": (full_scales, full_extremes), "saturating": (pair_scales, pair_extremes)}
SHAPES = [(512, 512), (512, 2048), (2048, 512), (64, 97), (33, 16)]


def layer(inputs, outputs, monkeypatch=None, scales=None, **options):
    torch.manual_seed(inputs + outputs)
    linear = torch.nn.Linear(inputs, outputs)
    if scales is not None:
        monkeypatch.setattr(int8, "scales_for", lambda *shape: scales)
    return linear, Int8Linear(linear.weight, linear.bias, **options)


def error(linear, quantised, x):
    exact = linear(x) - linear.bias
    return ((quantised(x) - linear.bias - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_a_layer_is_within_one_and_a_half_percent_of_fp32(shape, rows):
    """On the processor at hand, as it is."""
    linear, quantised = layer(*shape)
    assert error(linear, quantised, torch.randn(rows, shape[0])) < 0.015
    linear, quantised = layer(*shape, after_relu=True)
    assert error(linear, quantised, torch.randn(rows, shape[0]).relu()) < 0.015


@pytest.mark.parametrize("shape", SHAPES)
def test_the_scales_of_a_saturating_processor_are_close_enough_too(shape, monkeypatch):
    linear, quantised = layer(*shape, monkeypatch, pair_scales)
    assert error(linear, quantised, torch.randn(64, shape[0])) < 0.015


def saturating_product(inputs, weight):
    """What vpmaddubsw does: neighbouring products are added in 16 bits, and saturate."""
    products = inputs[:, None].int() * weight[None].int()
    if products.shape[2] % 2:
        products = torch.nn.functional.pad(products, (0, 1))
    return products.unflatten(2, (-1, 2)).sum(3).clamp(-(2**15), 2**15 - 1).sum(2)


@pytest.mark.parametrize("inputs", [64, 33])
def test_pair_scales_never_saturate_and_full_ones_do(inputs):
    torch.manual_seed(1)
    weight = torch.randn(40, inputs)
    weight[0] = 1.0  # the worst case
    weight[1] = -1.0
    largest = torch.full((1, inputs), 255, dtype=torch.uint8)
    for scales, exact in ((pair_scales, True), (full_scales, False)):
        quantised = (weight / scales(weight)[:, None]).round().to(torch.int8)
        for chosen in (largest, *(largest * (quantised[row : row + 1] > 0) for row in range(40))):
            same = torch.equal(saturating_product(chosen, quantised), chosen.int() @ quantised.int().t())
            if not same:
                break
        assert same == exact


@pytest.mark.parametrize("name", GRIDS)
def test_the_probe_finds_the_scales_that_are_exact(monkeypatch, name):
    """Run over operators of both kinds, in integers, instead of the one of this processor."""

    def multiply(inputs, packed, scales, zeros, bias):
        exact = inputs.int() @ packed.int().t()
        return (exact if name == "exact" else saturating_product(inputs, packed)).float() * scales

    monkeypatch.setattr(int8, "_multiply", multiply)
    monkeypatch.setattr(torch.ops.onednn, "qlinear_prepack", lambda weight, shape: weight, raising=False)
    assert scales_for.__wrapped__(48, 64) is GRIDS[name][0]


def test_a_processor_that_pairs_products_in_another_way_is_refused(monkeypatch):
    def multiply(inputs, packed, scales, zeros, bias):
        shuffled = torch.arange(packed.shape[1]).view(2, -1).t().flatten()
        return saturating_product(inputs[:, shuffled], packed[:, shuffled]).float() * scales

    monkeypatch.setattr(int8, "_multiply", multiply)
    monkeypatch.setattr(torch.ops.onednn, "qlinear_prepack", lambda weight, shape: weight, raising=False)
    with pytest.raises(InputError, match="does not compute exactly on this processor; use fp32 or bf16"):
        scales_for.__wrapped__(48, 64)


def test_a_torch_without_the_operators_is_refused(monkeypatch):
    def missing(*arguments):
        raise NotImplementedError("not built")

    monkeypatch.setattr(int8, "_multiply", missing)
    with pytest.raises(InputError, match="this build of torch lacks; use fp32 or bf16"):
        scales_for.__wrapped__(48, 64)


def test_a_row_does_not_depend_on_its_company():
    """To the last bit: the products are integers, and every row has its own scale."""
    _, quantised = layer(64, 96)
    x = torch.randn(40, 64) * torch.logspace(-3, 3, 40)[:, None]
    alone = torch.cat([quantised(row[None]) for row in x])
    assert torch.equal(quantised(x), alone)
    assert torch.equal(quantised(torch.zeros(2, 64)), quantised.bias.expand(2, -1))
    assert quantised(torch.full((1, 64), torch.nan)).isnan().all(), "invalid input must stay visible"


def test_int8_translates_alone_as_together(digits_model):
    sources = [source for source, _ in reversed_digits(60, seed=77_777)]
    translator = Translator(digits_model, precision="int8")
    together = translator.translate_nbest(sources)
    alone = [translator.translate_nbest([source])[0] for source in sources]
    assert [found[0].text for found in alone] == [found[0].text for found in together]
    assert [f[0].score for f in alone] == pytest.approx([f[0].score for f in together], abs=2e-2)
