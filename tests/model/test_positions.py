"""Positions that self-attention sees: their equations, written out for one pair of positions at a time."""

import math
from dataclasses import replace

import torch
from model_variants import POSITIONS, padded, scrambled, sentences, tiny_config
from pytest import mark, raises

from deepnmt.model.attention import SelfAttention
from deepnmt.model.config import StackConfig
from deepnmt.model.positions import RelativePositions, Rotation
from deepnmt.model.sequences import PaddedSequences
from deepnmt.model.storage import load_model, save_model
from deepnmt.model.transformer import Transformer
from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import World
from deepnmt.training.optimizer import build_optimizer

IN_ATTENTION = [name for name in POSITIONS if name != "learned"]


@torch.no_grad()
@mark.parametrize("values", [True, False])
@mark.parametrize("causal", [True, False])
def test_relative_attention_is_the_papers_sum_over_pairs(values, causal):
    """Shaw et al. 2018: e_ij = x_i W_Q (x_j W_K + a_ij)' / sqrt(d), z_i = sum_j alpha_ij (x_j W_V + b_ij)."""
    torch.manual_seed(1)
    heads, size, length, clip = 2, 4, 7, 3
    relative = RelativePositions(size, clip, values).double()
    for table in relative.parameters():
        torch.nn.init.normal_(table)
    attention = SelfAttention(heads * size, heads, 0.0, relative=relative).double()
    x = torch.randn(1, length, heads * size, dtype=torch.float64)
    sequences = PaddedSequences(torch.full((1, length), 5), 1)
    found = attention(x, sequences.past() if causal else sequences.whole())[0]

    projected = attention.input(x[0]).view(length, 3, heads, size)
    expected = torch.zeros(length, heads, size, dtype=torch.float64)
    for head in range(heads):
        query, key, value = projected[:, :, head].unbind(1)
        for i in range(length):
            seen = range(i + 1 if causal else length)
            row = {j: max(-clip, min(clip, j - i)) + clip for j in seen}
            scores = [float(query[i] @ (key[j] + relative.keys[row[j]])) / math.sqrt(size) for j in seen]
            total = sum(map(math.exp, scores))
            for j, score in zip(seen, scores, strict=True):
                added = relative.values[row[j]] if values else 0.0
                expected[i, head] += math.exp(score) / total * (value[j] + added)
    torch.testing.assert_close(found, attention.output(expected.flatten(1)), rtol=1e-9, atol=1e-9)


def test_relative_vectors_of_zero_are_plain_attention():
    config = tiny_config(**POSITIONS["relative"])
    relative, plain = scrambled(config), scrambled(tiny_config(positions="rotary"))
    plain.rotates = False  # then it has no positions at all
    weights = relative.state_dict()
    plain.load_state_dict({name: tensor for name, tensor in weights.items() if ".relative." not in name})
    with torch.no_grad():
        for name, table in relative.named_parameters():
            if ".relative." in name:
                table.zero_()
    source, target = padded(sentences(6, 4)), padded(sentences(5, 6, seed=2))
    torch.testing.assert_close(relative(source, target), plain(source, target), rtol=1e-9, atol=1e-9)


def test_rotation_turns_pairs_by_an_angle_for_each():
    """Su et al. 2021: the pair i at position t turns by t * 10000^(-2i/d), here as a product of complex numbers."""
    torch.manual_seed(1)
    size, positions = 6, torch.tensor([0, 1, 5, 300])
    x = torch.randn(4, 2, size, dtype=torch.float64)
    found = Rotation.at(positions, size).turn(x)
    for place, t in enumerate(positions.tolist()):
        for i in range(size // 2):
            pair = torch.complex(x[place, :, i], x[place, :, i + size // 2])
            angle = t * 10_000 ** (-2 * i / size)
            turned = pair * complex(math.cos(angle), math.sin(angle))
            torch.testing.assert_close(found[place, :, i], turned.real, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found[place, :, i + size // 2], turned.imag, rtol=1e-4, atol=1e-4)


def test_rotated_queries_and_keys_know_only_their_distance():
    torch.manual_seed(1)
    query, key = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def product(s, t):
        turned = (Rotation.at(torch.tensor([place]), 8).turn(x) for x, place in ((query, s), (key, t)))
        return float((next(turned) * next(turned)).sum())

    assert abs(product(3, 7) - product(13, 17)) < 1e-5
    assert abs(product(3, 7) - product(7, 3)) > 1e-2


def test_nothing_turns_at_position_zero_nor_in_the_values():
    projected = torch.randn(3, 3, 2, 4)
    turned = Rotation.at(torch.tensor([0, 2, 0]), 4).turn_projected(projected)
    assert torch.equal(turned[:, 2], projected[:, 2])
    assert torch.equal(turned[::2], projected[::2])
    assert not torch.equal(turned[1, :2], projected[1, :2])


@mark.parametrize("name", IN_ATTENTION)
def test_the_order_of_the_source_matters(name):
    model = scrambled(tiny_config(**POSITIONS[name]))
    source, target = torch.stack(sentences(6)), torch.stack(sentences(3, seed=2))
    assert (model(source, target) - model(source.flip(1), target)).abs().max() > 1e-3


@mark.parametrize("name", IN_ATTENTION)
def test_a_long_beam_drops_unused_slots_and_keeps_its_positions(name):
    """Slots move when unused ones are dropped; their positions move with them."""
    model = scrambled(tiny_config(**POSITIONS[name]))
    source, beam = padded(sentences(6, 4)), 3
    cache = model.start(model.encode(source), beam=beam)
    history = torch.empty(len(source) * beam, 0, dtype=torch.long)
    rows = torch.tensor([0, 0, 0, 3, 3, 5])  # most hypotheses die, so most slots are dropped
    for seed in range(20):
        tokens = torch.stack(sentences(*[1] * len(history), seed=seed))
        logits, cache = model.step(tokens[:, 0], cache)
        history = torch.cat([history, tokens], dim=1)
        expected = model(source.repeat_interleave(beam, 0), history)[:, -1]
        torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
        cache, history = cache.reorder(rows), history[rows]
    assert cache.lineage.shape[2] < cache.length * beam


@mark.parametrize("name", IN_ATTENTION)
def test_samples_keep_their_positions(name):
    model = scrambled(tiny_config(**POSITIONS[name]))
    source, count = padded(sentences(6, 4)), 3
    cache = model.start(model.encode(source), families=count)
    history = torch.empty(len(source) * count, 0, dtype=torch.long)
    for seed in range(6):
        tokens = torch.stack(sentences(*[1] * len(history), seed=seed))
        logits, cache = model.step(tokens[:, 0], cache)
        history = torch.cat([history, tokens], dim=1)
        expected = model(source.repeat_interleave(count, 0), history)[:, -1]
        torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
        if seed == 2:
            cache, history, source = cache.select(torch.tensor([1])), history[count:], source[1:]


@mark.parametrize("name", IN_ATTENTION)
def test_a_model_comes_back_from_its_folder(name, tmp_path):
    model = scrambled(tiny_config(**POSITIONS[name]), torch.float32)
    save_model(tmp_path, model)
    source, target = padded(sentences(6, 4)), padded(sentences(5, 6, seed=2))
    assert torch.equal(load_model(tmp_path)(source, target), model(source, target))


def test_tables_of_relative_positions_are_not_muons():
    model = Transformer(tiny_config(**POSITIONS["relative"]))
    config, world = TrainingConfig(max_steps=1, optimizer="muon"), World(0, 1, torch.device("cpu"))
    optimizer = build_optimizer(model, config, world)
    tables = [parameter for name, parameter in model.named_parameters() if ".relative." in name]
    assert len(tables) == 2 * 5
    adams = {id(parameter) for group in optimizer.adam.param_groups for parameter in group["params"]}
    assert adams >= set(map(id, tables))
    assert id(model.encoder.layers[0].attention.input.weight) not in adams


def test_heads_of_odd_width_cannot_turn():
    odd = StackConfig(dim=12, ffn_dim=8, num_heads=4, num_layers=1)
    with raises(ValueError, match=r'positions = "rotary" needs heads of even width, but decoder\.dim = 12'):
        replace(tiny_config(positions="rotary", share_embeddings=False), decoder=odd)
    with raises(ValueError, match="max_distance = 0 must be at least 1"):
        tiny_config(positions="relative", max_distance=0)


@mark.parametrize("setting", ["max_positions", "max_distance", "pad_id"])
def test_impossible_numbers_are_refused(setting):
    with raises(ValueError, match=f"{setting} = -1 must be at least"):
        tiny_config(**{setting: -1})
