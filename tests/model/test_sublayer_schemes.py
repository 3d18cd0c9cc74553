"""What each scheme around a sub-layer says it is: its equation, written out plainly, and how it starts."""

import math
from dataclasses import replace

import torch
from model_variants import DIM, padded, scrambled, sentences, tiny_config
from pytest import approx, mark, raises

from deepnmt.model.config import StackConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.initialization import branch_variances, start_from, starts_from_data
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.sublayers.layer_scale import LayerScaleConfig
from deepnmt.model.sublayers.mix import MixConfig
from deepnmt.model.transformer import Transformer

N, M = 3, 2  # layers of `tiny_config`


def plain_attention(attention, x, seen, causal=False, inner=None):
    """Multi-head attention over one sentence, x: (T, dim), seen: (S, dim)."""
    if hasattr(attention, "input"):
        matrices, biases = attention.input.weight.chunk(3), attention.input.bias.chunk(3)
    else:
        matrices = [attention.query.weight, *attention.key_value.weight.chunk(2)]
        biases = [attention.query.bias, *attention.key_value.bias.chunk(2)]
    inputs = (x, seen, seen)
    parts = [part @ matrix.T + bias for part, matrix, bias in zip(inputs, matrices, biases, strict=True)]
    heads = []
    for q, k, v in zip(*(part.chunk(attention.num_heads, -1) for part in parts), strict=True):
        scores = q @ k.T / math.sqrt(q.shape[-1])
        if causal:
            scores = scores + torch.full_like(scores, -math.inf).triu(1)
        heads.append(scores.softmax(-1) @ v)
    heads = torch.cat(heads, -1)
    if inner is not None:
        heads = inner(attention.inner_norm, heads)
    return heads @ attention.output.weight.T + attention.output.bias


def plain_feed_forward(part, x, inner=None):
    hidden = (x @ part.expand.weight.T + part.expand.bias).relu()
    if inner is not None:
        hidden = inner(part.inner_norm, hidden)
    return hidden @ part.contract.weight.T + part.contract.bias


def ln(norm, x):
    """The norm's parameters, and the formula by hand."""
    centred = x - x.mean(-1, keepdim=True)
    return norm.weight * centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() + norm.bias


def plain_stack(stack, x, rule, memory=None, inner=None):
    """The layers of a residual stack, each sub-layer by `rule(unit, x, F, layer input, layer number, ends layer)`."""
    for number, layer in enumerate(stack.layers, start=1):
        start = x
        functions = [lambda z, layer=layer: plain_attention(layer.attention, z, z, memory is not None, inner)]
        if memory is not None:
            functions.append(lambda z, layer=layer: plain_attention(layer.cross_attention, z, memory))
        functions.append(lambda z, layer=layer: plain_feed_forward(layer.feed_forward, z, inner))
        units = [unit for unit, _ in layer.sublayers()]
        for unit, function in zip(units, functions, strict=True):
            x = rule(unit, x, function, start, number, unit is units[-1])
    return x


def deepnorm(decoder):
    def rule(unit, x, f, start, number, ends):
        a = (3 * M) ** (1 / 4) if decoder else 0.81 * (N**4 * M) ** (1 / 16)
        return ln(unit.norm, a * x + f(x))

    return rule


def layer_scale(decoder):
    return lambda unit, x, f, start, number, ends: x + unit.weight * f(ln(unit.norm, x))


def pre(decoder):
    return lambda unit, x, f, start, number, ends: x + f(ln(unit.norm, x))


def post(decoder):
    return lambda unit, x, f, start, number, ends: ln(unit.norm, x + f(x))


def admin(decoder):
    return lambda unit, x, f, start, number, ends: ln(unit.norm, unit.weight * x + f(x))


def b2t(decoder):
    def rule(unit, x, f, start, number, ends):
        return ln(unit.norm, start + x + f(x)) if ends else ln(unit.norm, x + f(x))

    return rule


def peri(decoder):
    return lambda unit, x, f, start, number, ends: x + ln(unit.output_norm, f(ln(unit.norm, x)))


def scaled(decoder):
    return lambda unit, x, f, start, number, ends: x + f(ln(unit.norm, x) / math.sqrt(number))


def mix(decoder):
    """Half of three layers and half of two: in both stacks the first is post-norm."""

    def rule(unit, x, f, start, number, ends):
        return ln(unit.norm, x + f(x)) if number == 1 else x + f(ln(unit.norm, x))

    return rule


def rezero(decoder):
    return lambda unit, x, f, start, number, ends: x + unit.weight * f(x)


RULES = {
    "pre": pre,
    "post": post,
    "deepnorm": deepnorm,
    "admin": admin,
    "b2t": b2t,
    "peri": peri,
    "sub-ln": pre,  # its second norm is inside the functions
    "scaled": scaled,
    "layer-scale": layer_scale,
    "mix": mix,
    "rezero": rezero,
}
NO_NORM_ON_TOP = {"post", "deepnorm", "admin", "b2t", "rezero"}


def embedded(embedding, ids):
    places = torch.arange(len(ids)) + embedding.first_position
    return embedding.scale * embedding.tokens.weight[ids] + embedding.positions(places)


def test_every_scheme_has_its_equation_here():
    assert RULES.keys() == SUBLAYERS.keys()


@mark.parametrize("kind", RULES)
def test_a_model_is_what_the_equation_says(kind):
    model = scrambled(tiny_config(norm=kind))
    (source,), (target,) = sentences(6), sentences(5, seed=2)

    def run(stack, embedding, ids, memory=None):
        x = embedded(embedding, ids)
        if kind == "peri":
            x = ln(stack.embedding_norm, x)
        x = plain_stack(stack, x, RULES[kind](memory is not None), memory, inner=ln if kind == "sub-ln" else None)
        return x if kind in NO_NORM_ON_TOP else ln(stack.final_norm, x)

    memory = run(model.encoder, model.source_embedding, source)
    expected = run(model.decoder, model.target_embedding, target, memory) @ model.output_weight.T
    torch.testing.assert_close(model(source[None], target[None])[0], expected, rtol=1e-9, atol=1e-9)


def ratios(kind):
    """(stack, sub-layer, matrix, how many times larger than under pre-norm it starts), for one and the same seed."""
    models = []
    for norm in ("pre", kind):
        torch.manual_seed(0)
        models.append(dict(Transformer(tiny_config(norm=norm)).named_parameters()))
    for name, plain in models[0].items():
        stack, _, *path = name.split(".")
        if plain.ndim == 2 and stack in ("encoder", "decoder"):
            _, part, matrix, _ = path
            rows = {"input": ["query", "key", "value"], "key_value": ["key", "value"]}.get(matrix, [matrix])
            parts = zip(rows, models[1][name].chunk(len(rows)), plain.chunk(len(rows)), strict=True)
            for row, ours, theirs in parts:
                ratio = ours / theirs
                torch.testing.assert_close(ratio, ratio[:1, :1].expand_as(ratio))
                yield stack, part, row, ratio[0, 0].item()


def test_deepnorm_starts_with_smaller_branches():
    encoder, decoder = 0.87 * (N**4 * M) ** (-1 / 16), (12 * M) ** (-1 / 4)
    for stack, part, matrix, ratio in ratios("deepnorm"):
        gain = 1 if matrix in ("query", "key") else encoder if stack == "encoder" else decoder
        assert ratio == approx(gain, rel=1e-5), (stack, part, matrix)


def test_sub_ln_starts_with_larger_branches_but_for_cross_attention():
    encoder, decoder = math.sqrt(math.log(3 * M) * math.log(2 * N) / 3), math.sqrt(math.log(3 * M))
    for stack, part, matrix, ratio in ratios("sub-ln"):
        gain = (
            1 if matrix in ("query", "key") or part == "cross_attention" else encoder if stack == "encoder" else decoder
        )
        assert ratio == approx(gain, rel=1e-5), (stack, part, matrix)


@mark.parametrize("kind", sorted(set(SUBLAYERS) - {"deepnorm", "sub-ln"}))
def test_other_schemes_start_with_the_matrices_of_pre_norm(kind):
    assert {ratio for *_, ratio in ratios(kind)} == {1.0}


def test_the_constants_of_deepnorm_at_the_paper_s_depth():
    """30 + 6 layers."""
    stack = StackConfig(num_layers=30, dim=8, ffn_dim=8, num_heads=1, sublayer=SUBLAYERS["deepnorm"].Config())
    model = Transformer(replace(tiny_config(), encoder=stack, decoder=replace(stack, num_layers=6)))
    encoder, decoder = (stack.layers[0].around_attention for stack in (model.encoder, model.decoder))
    found = [encoder.residual, encoder.gain, decoder.residual, decoder.gain]
    assert found == approx([2.120, 0.332, 2.060, 0.343], abs=5e-4)


@mark.parametrize(("depth", "start"), [(6, 0.1), (18, 0.1), (24, 1e-5), (30, 1e-6)])
def test_layer_scale_starts_smaller_in_deeper_stacks(depth, start):
    stack = StackConfig(num_layers=depth, dim=8, ffn_dim=8, num_heads=1, sublayer=LayerScaleConfig())
    model = Transformer(replace(tiny_config(), encoder=stack, decoder=replace(stack, num_layers=2)))
    for layer in model.encoder.layers:
        assert torch.equal(layer.around_feed_forward.weight, torch.full((8,), start))
    assert model.decoder.layers[0].around_cross_attention.weight[0] == 0.1
    with raises(ValueError, match=r"sublayer\.start = 0\.0 must be above 0"):
        LayerScaleConfig(start=0.0)


def test_the_stacks_may_differ():
    config = tiny_config()
    mixed = replace(config, encoder=replace(config.encoder, sublayer=SUBLAYERS["deepnorm"].Config()))
    model = scrambled(mixed)
    source, target = padded(sentences(6)), padded(sentences(4, seed=2))
    assert model(source, target).isfinite().all()
    encoded = model.encode(source)
    x = plain_stack(model.encoder, embedded(model.source_embedding, source[0]), deepnorm(False))
    torch.testing.assert_close(encoded.memories[0][0], x, rtol=1e-9, atol=1e-9)
    assert isinstance(model.decoder.final_norm, torch.nn.LayerNorm)


def test_rms_norm_is_an_option_of_both_axes():
    model = scrambled(tiny_config(encoder=DlclConfig(), norm_kind="rms"))
    layer = model.encoder.layers[0]
    x = torch.randn(3, DIM, dtype=torch.float64)
    for norm in (layer.around_attention.norm, model.encoder.final_norm, model.encoder.connection.norms[1]):
        expected = norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        torch.testing.assert_close(norm(x), expected)
        assert not hasattr(norm, "bias")


@mark.parametrize("stack", ["encoder", "decoder"])
def test_rezero_starts_as_the_identity(stack):
    model = Transformer(tiny_config(norm="rezero"))
    source = padded(sentences(5))
    assert torch.equal(model.encode(source).memories[0], model.source_embedding(source, torch.arange(5)))
    assert isinstance(getattr(model, stack).final_norm, torch.nn.Identity)


def test_mix_rounds_the_share_of_post_norm_layers_down():
    stack = StackConfig(num_layers=11, dim=8, ffn_dim=8, num_heads=1, sublayer=MixConfig())
    model = Transformer(replace(tiny_config(), encoder=stack, decoder=replace(stack, num_layers=3)))
    assert [layer.around_attention.is_post for layer in model.encoder.layers] == [True] * 2 + [False] * 9
    assert not any(layer.around_attention.is_post for layer in model.decoder.layers)
    with raises(ValueError, match=r"sublayer\.post_share = 1\.0 must be at least 0 and below 1"):
        MixConfig(post_share=1.0)


def test_admin_starts_with_the_root_of_the_variance_below():
    """That of the stack's input and of the branches, found by one pass with all weights at one; each stack apart."""
    torch.manual_seed(0)
    model = Transformer(tiny_config(norm="admin")).double()
    (source,), (target,) = sentences(6), sentences(5, seed=2)
    branches = {False: [], True: []}

    def post(decoder):
        def rule(unit, x, f, start, number, ends):
            branches[decoder].append(f(x))
            return ln(unit.norm, x + f(x))

        return rule

    inputs = embedded(model.source_embedding, source), embedded(model.target_embedding, target)
    memory = plain_stack(model.encoder, inputs[0], post(False))
    plain_stack(model.decoder, inputs[1], post(True), memory)
    assert starts_from_data(model) and not starts_from_data(Transformer(tiny_config()))
    start_from(model, branch_variances(model, lambda: model(source[None], target[None])))

    for decoder, stack in ((False, model.encoder), (True, model.decoder)):
        units = [unit for layer in stack.layers for unit, _ in layer.sublayers()]
        for number, unit in enumerate(units):
            below = [part.var(correction=0).item() for part in (inputs[decoder], *branches[decoder][:number])]
            expected = math.sqrt(sum(below)) if number else 1.0
            torch.testing.assert_close(unit.weight, torch.full_like(unit.weight, expected))
            assert unit.weight.requires_grad == (number > 0)
        assert len(units) == len(branches[decoder])


def test_layers_that_training_skips_are_measured_too():
    config, found = tiny_config(norm="admin"), []
    for rate in (0.0, 0.9):
        stacks = [replace(stack, layer_dropout=rate, sublayer_dropout=rate) for stack in config.stacks.values()]
        torch.manual_seed(0)
        model = Transformer(replace(config, encoder=stacks[0], decoder=stacks[1])).train()
        found.append(branch_variances(model, lambda model=model: model(padded(sentences(6)), padded(sentences(5)))))
        assert model.encoder.layer_drop.p == rate
    assert found[0] == found[1]


def test_qk_norm_normalises_queries_and_keys_head_by_head():
    model = scrambled(tiny_config(qk_norm=True))
    x, memory = torch.randn(2, 5, DIM, dtype=torch.float64).unbind()
    layer = model.decoder.layers[0]

    def normed(norm, part):
        return norm.weight * part / (part.square().mean(-1, keepdim=True) + norm.eps).sqrt()

    own, cross = layer.attention, layer.cross_attention
    query, keys, values = (part.unflatten(-1, (4, -1)) for part in own.input(x).chunk(3, -1))
    expected = torch.stack([normed(own.query_norm, query), normed(own.key_norm, keys), values], -3)
    torch.testing.assert_close(own.project(x), expected)
    torch.testing.assert_close(cross.queries(x), normed(cross.query_norm, cross.query(x).unflatten(-1, (4, -1))))
    keys, values = (part.unflatten(-1, (4, -1)) for part in cross.key_value(memory).chunk(2, -1))
    torch.testing.assert_close(cross.project(memory).keys, normed(cross.key_norm, keys))
    torch.testing.assert_close(cross.project(memory).values, values)
    assert not any(
        "_norm" in name for name, _ in Transformer(tiny_config()).decoder.layers[0].attention.named_parameters()
    )
