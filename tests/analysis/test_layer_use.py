"""What each layer contributes: plain twins of every figure, and the laws for every scheme."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from pytest import approx, mark

from deepnmt.analysis.layers import LayerReport, draw, measure_layers, num_passes, to_csv
from deepnmt.decoding.likelihood import ForcedBatch
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer

PAD, EOS = 1, 2
LENGTHS = [(5, 3), (2, 6), (7, 1), (4, 4), (3, 2)]  # of source and target, with the end
SCHEMES = [(kind, "pre") for kind in CONNECTIONS] + [("residual", kind) for kind in SUBLAYERS]
every_scheme = mark.parametrize(("connection", "sublayer"), SCHEMES)


def model_of(connection="residual", sublayer="pre", layers=(3, 2)):
    """Nothing is at a special value, such as the zeros of ReZero."""
    torch.manual_seed(0)
    stack = StackConfig(
        dim=16,
        ffn_dim=24,
        num_heads=4,
        connection=CONNECTIONS[connection].Config(),
        sublayer=SUBLAYERS[sublayer].Config(),
    )
    encoder, decoder = (replace(stack, num_layers=count) for count in layers)
    model = Transformer(ModelConfig(source_vocab_size=14, target_vocab_size=14, encoder=encoder, decoder=decoder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def batches_of(*sizes):
    """The same sentences in batches of these sizes."""
    torch.manual_seed(1)
    drawn = [[[*torch.randint(4, 14, (length - 1,)).tolist(), EOS] for length in lengths] for lengths in LENGTHS]
    batches, start = [], 0
    for size in sizes or (len(drawn),):
        sentences = list(range(start, start + size))
        source, target = (padded([drawn[i][side] for i in sentences]) for side in (0, 1))
        shifted = F.pad(target, (1, -1), value=EOS)
        batches.append(ForcedBatch(sentences, source, shifted.where(target != PAD, PAD), target, target != PAD))
        start += size
    return batches


def padded(rows):
    return torch.tensor([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows])


def plain_loss(model):
    (batch,) = batches_of()
    logits = model(batch.source, batch.target_input)
    return F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=PAD).item()


def numbers(stacks):
    """Every figure of a measurement, in one row."""
    layers = [vars(layer).values() for use in stacks for layer in use.layers]
    similarities = [value for use in stacks for row in use.similarity for value in row]
    return [value for row in layers for value in row if value is not None] + similarities


@every_scheme
def test_the_figures_of_every_scheme(connection, sublayer):
    model, calls = model_of(connection, sublayer), []
    before = model(batches_of()[0].source, batches_of()[0].target_input)
    loss, stacks = measure_layers(model, batches_of(), calls.append)
    assert loss == approx(plain_loss(model), rel=1e-6)
    assert len(calls) == num_passes(model)
    assert torch.equal(model(batches_of()[0].source, batches_of()[0].target_input), before), "the model is as before"
    for use, depth in zip(stacks, (3, 2), strict=True):
        assert [layer.layer for layer in use.layers] == list(range(depth + 1))
        assert use.layers[-1].exit_loss == approx(loss, rel=1e-12)
        for layer in use.layers[1:]:
            assert layer.importance != 0 and layer.standard_error > 0
            assert -1 <= layer.cosine <= 1 and layer.change > 0 and layer.norm > 0
        similarity = torch.tensor(use.similarity)
        torch.testing.assert_close(similarity, similarity.T)
        torch.testing.assert_close(similarity.diagonal(), torch.ones(depth + 1))
        assert (similarity >= 0).all() and (similarity <= 1 + 1e-6).all()


@every_scheme
def test_batches_and_padding_do_not_matter(connection, sublayer):
    model = model_of(connection, sublayer)
    whole, parts = (measure_layers(model, batches) for batches in (batches_of(), batches_of(1, 3, 1)))
    assert parts[0] == approx(whole[0], rel=1e-5)
    assert numbers(parts[1]) == approx(numbers(whole[1]), rel=1e-3, abs=2e-5)


@mark.gpu
@every_scheme
def test_a_gpu_measures_what_a_cpu_measures(connection, sublayer):
    model = model_of(connection, sublayer)
    loss, stacks = measure_layers(model, batches_of())
    (batch,) = batches_of()
    moved = {name: value.cuda() for name, value in vars(batch).items() if name != "sentences"}
    on_gpu = measure_layers(model.cuda(), [replace(batch, **moved)])
    assert on_gpu[0] == approx(loss, rel=1e-4)
    assert numbers(on_gpu[1]) == approx(numbers(stacks), rel=1e-2, abs=1e-3)


@torch.no_grad()
def make_second_an_identity(layers):
    """Its branches add nothing, and norms that are not inside a branch are plain, as those of the layer below."""
    for layer in layers:
        for around, function in layer.sublayers():
            ends = [function.ends()[1], getattr(around, "output_norm", torch.nn.Identity())]
            for parameter in [parameter for end in ends for parameter in end.parameters()]:
                parameter.mul_(layer is not layers[1])
            if around.placement == "post":
                around.load_state_dict({name: torch.ones_like(value) for name, value in around.state_dict().items()})
                around.norm.bias.zero_()


@every_scheme
def test_a_layer_that_is_the_identity_costs_nothing(connection, sublayer):
    """Exactly nothing where layers add to their input. Under post-norm the epsilon of a norm remains."""
    model, tolerance = model_of(connection, sublayer), 0.0 if SUBLAYERS[sublayer].placement == "pre" else 1e-4
    make_second_an_identity(model.encoder.layers)
    make_second_an_identity(model.decoder.layers)
    _, stacks = measure_layers(model, batches_of())
    for use in stacks:
        assert use.layers[1].importance != 0
        identity = use.layers[2]
        assert (identity.importance, identity.change) == (approx(0.0, abs=tolerance), approx(0.0, abs=tolerance))
        assert identity.cosine == approx(1.0, abs=1e-6)


@mark.parametrize("sublayer", ["pre", "post"])
def test_without_a_layer_a_residual_model_is_a_shallower_one(sublayer):
    model = model_of(sublayer=sublayer)
    _, (encoder, decoder) = measure_layers(model, batches_of())
    loss = plain_loss(model)
    shallower = model_of(sublayer=sublayer)
    del shallower.encoder.layers[1]
    assert loss + encoder.layers[2].importance == approx(plain_loss(shallower), rel=1e-6)
    shallower = model_of(sublayer=sublayer)
    shallower.config = replace(shallower.config, decoder=replace(shallower.config.decoder, num_layers=1))
    del shallower.decoder.layers[0]
    assert loss + decoder.layers[1].importance == approx(plain_loss(shallower), rel=1e-6)


@mark.parametrize("sublayer", ["pre", "post"])
def test_the_loss_of_an_exit_is_that_of_a_cut_off_model(sublayer):
    _, (encoder, decoder) = measure_layers(model_of(sublayer=sublayer), batches_of())
    for depth in range(3):
        cut = model_of(sublayer=sublayer)
        del cut.encoder.layers[depth:]
        assert encoder.layers[depth].exit_loss == approx(plain_loss(cut), rel=1e-6)
    cut = model_of(sublayer=sublayer)
    cut.config = replace(cut.config, decoder=replace(cut.config.decoder, num_layers=1))
    del cut.decoder.layers[1:]
    assert decoder.layers[1].exit_loss == approx(plain_loss(cut), rel=1e-6)


def test_changes_and_similarities_are_those_of_real_positions():
    """Layer by layer and sentence by sentence, without padding."""
    model = model_of()
    (batch,) = batches_of()
    outputs = [[] for _ in range(4)]
    for ids in batch.source:
        source = model._sequences(ids[ids != PAD][None])
        x = model.source_embedding(source.ids, source.positions())
        outputs[0].append(x[0])
        for layer, collected in zip(model.encoder.layers, outputs[1:], strict=True):
            x = layer(x, source.whole())
            collected.append(x[0])
    y = [torch.cat(parts).detach().double() for parts in outputs]
    _, (encoder, _) = measure_layers(model, [batch])
    for depth, layer in enumerate(encoder.layers):
        assert layer.norm == approx(y[depth].norm(dim=1).mean().item(), rel=1e-5)
        if depth:
            x = y[depth - 1]
            assert layer.change == approx(((y[depth] - x).norm(dim=1) / x.norm(dim=1)).mean().item(), rel=1e-5)
            assert layer.cosine == approx(F.cosine_similarity(x, y[depth]).mean().item(), rel=1e-5)
    a, b = (part - part.mean(0) for part in (y[0], y[3]))
    expected = (a.T @ b).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert encoder.similarity[0][3] == approx(expected.item(), rel=1e-5)


def test_the_standard_error_is_that_of_the_mean_where_sentences_are_equally_long(monkeypatch):
    monkeypatch.setitem(globals(), "LENGTHS", [(4, 5)] * 30)
    model = model_of()
    (batch,) = batches_of()

    def of_sentences(model):
        logits = model(batch.source, batch.target_input)
        return F.cross_entropy(logits.transpose(1, 2), batch.target, reduction="none").mean(1)

    _, (encoder, _) = measure_layers(model, [batch])
    whole = of_sentences(model)
    del model.encoder.layers[0]
    rises = of_sentences(model) - whole
    assert encoder.layers[1].importance == approx(rises.mean().item(), abs=1e-6)
    assert encoder.layers[1].standard_error == approx(rises.std().item() / 30**0.5, rel=1e-4)


def test_the_report_in_every_form():
    loss, stacks = measure_layers(model_of("dlcl"), batches_of())
    report = LayerReport("MODEL", "about", 5, 21, 16, loss, stacks)
    text = str(report)
    assert "5 pairs, 21 source and 16 target subwords" in text and f"loss {loss:.4f}" in text
    assert max(map(len, text.splitlines())) <= 120
    head, *rows = (line.split(",") for line in to_csv(report).splitlines())
    assert len(rows) == 4 + 3 and {len(row) for row in rows} == {len(head)}
    assert rows[0][:4] == ["encoder", "0", "", ""] and float(rows[5][2]) == approx(
        stacks[1].layers[1].importance, rel=1e-4
    )
    *charts, encoder, decoder = draw(report)
    assert len(charts) == 4 * 2 and "Decoder: norm of the output" in charts[-1]
    assert "y3 and y1: " in encoder and "2-layer decoder" in decoder
