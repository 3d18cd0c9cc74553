"""Search over a model: the prepared's cache, the model's own cache and no cache at all say the same."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from toy_learning import padded

from deepnmt.data.vocabulary import EOS
from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.prepared import AlignedLinear, PreparedModel, prepare
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.search import Beams
from deepnmt.decoding.search import search as run_search
from deepnmt.model import cache
from deepnmt.model.config import CONNECTION_CONFIGS, SUBLAYER_CONFIGS, ModelConfig, StackConfig
from deepnmt.model.storage import load_model
from deepnmt.model.transformer import Transformer

SENTENCES = [[5, 9, 6, EOS], [7, EOS], [8, 8, 30, 12, 11, EOS]]


@pytest.fixture(scope="module")
def model(random_model):
    return load_model(random_model)


@dataclass
class Uncached:
    """The whole target again for every symbol."""

    source: Tensor
    target: Tensor
    beam: int

    def reorder(self, rows):
        return Uncached(self.source, self.target[rows], self.beam)

    def select(self, sentences):
        kept = self.target.view(-1, self.beam, self.target.shape[1])[sentences].flatten(0, 1)
        return Uncached(self.source[sentences], kept, self.beam)


def uncached_step(model):
    def step(symbols, state):
        target = torch.cat([state.target, symbols[:, None]], dim=1)
        logits = model(state.source.repeat_interleave(state.beam, 0), target)[:, -1]
        return logits, Uncached(state.source, target, state.beam)

    return step


def search(step, state, beam, max_lengths=(20, 35, 11), shrinking=()):
    rules = Rules(max_lengths=torch.tensor(max_lengths), eos=EOS, banned=(0, 1), min_length=6)
    config = SearchConfig(beam=beam, nbest=beam, patience=3.0)
    return run_search(step, state, Beams(rules, config), *shrinking)


def assert_same(found, expected):
    assert [[h.symbols for h in hypotheses] for hypotheses in found] == [
        [h.symbols for h in hypotheses] for hypotheses in expected
    ]
    for hypotheses, others in zip(found, expected, strict=True):
        assert [h.log_prob for h in hypotheses] == pytest.approx([h.log_prob for h in others], abs=1e-3)


@pytest.mark.parametrize("beam", [1, 3])
def test_cached_is_uncached(model, beam):
    source = padded(SENTENCES)
    empty = torch.zeros(len(SENTENCES) * beam, 0, dtype=torch.long)
    expected = search(uncached_step(model), Uncached(source, empty, beam), beam)
    assert max(len(h.symbols) for found in expected for h in found) > 8, "too short to show anything"
    assert_same(search(model.step, model.start(model.encode(source), beam=beam), beam), expected)
    prepared = PreparedModel(model)
    assert_same(search(prepared.step, prepared.start(source, beam), beam), expected)


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("block", [0, 5, 1_000])
def test_unused_slots_are_dropped_without_a_trace(model, monkeypatch, every, block):
    prepared = PreparedModel(model)
    expected = search(prepared.step, prepared.start(padded(SENTENCES), 3), 3)
    monkeypatch.setattr(cache, "COMPACT_EVERY", every)
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1.0)
    state = replace(prepared.start(padded(SENTENCES), 3), block_slots=block)
    assert_same(search(prepared.step, state, 3), expected)


def test_company_and_shrinking_change_nothing(model):
    prepared = PreparedModel(model)
    together = search(prepared.step, prepared.start(padded(SENTENCES), 3), 3, shrinking=(1, 0.0))
    assert_same(search(prepared.step, prepared.start(padded(SENTENCES), 3), 3, shrinking=(1, 1.0)), together)
    for i, (sentence, length) in enumerate(zip(SENTENCES, (20, 35, 11), strict=True)):
        alone = search(prepared.step, prepared.start(padded([sentence]), 3), 3, max_lengths=[length])
        assert_same(alone, together[i : i + 1])


def model_of(connection: str, sublayer: str, positions: str) -> Transformer:
    shape = {"dim": 32, "ffn_dim": 64, "num_heads": 2, "num_layers": 3}
    stack = StackConfig(
        **shape,
        connection=CONNECTION_CONFIGS[connection](),
        sublayer=SUBLAYER_CONFIGS[sublayer](),  # type: ignore[arg-type]
    )
    torch.manual_seed(2)
    sizes = {"source_vocab_size": 40, "target_vocab_size": 40, "max_distance": 3}
    model = Transformer(ModelConfig(positions=positions, encoder=stack, decoder=stack, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


SCHEMES = [(connection, "pre", "sinusoidal") for connection in CONNECTION_CONFIGS]
SCHEMES += [("residual", sublayer, "sinusoidal") for sublayer in SUBLAYER_CONFIGS if sublayer != "pre"]
SCHEMES += [("residual", "pre", positions) for positions in ("learned", "relative", "rotary")]


@pytest.mark.parametrize(("connection", "sublayer", "positions"), SCHEMES)
def test_every_scheme_decodes_step_by_step(connection, sublayer, positions):
    model = model_of(connection, sublayer, positions)
    source, prepared = padded(SENTENCES), PreparedModel(model)
    empty = torch.zeros(len(SENTENCES) * 2, 0, dtype=torch.long)
    expected = search(uncached_step(model), Uncached(source, empty, 2), 2)
    assert_same(search(prepared.step, prepared.start(source, 2), 2), expected)


@pytest.mark.parametrize(("connection", "sublayer", "positions"), SCHEMES)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 0.1), ("int8", 0.1)])
def test_every_scheme_is_prepared_for_the_cpu(connection, sublayer, positions, precision, tolerance):
    model = model_of(connection, sublayer, positions)
    source, target = padded(SENTENCES), torch.tensor([[EOS, 9, 12], [EOS, 20, 7], [EOS, 3, 3]])
    with torch.no_grad():
        expected = model(source, target)
        prepared = prepare(model, precision)
        state = prepared.start(source, 1)
        for position, symbols in enumerate(target.T):
            logits, state = prepared.step(symbols, state)
            error = (logits - expected[:, position]).norm() / expected[:, position].norm()
            assert error < tolerance, (position, error.item())


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_projection_with_more_rows_computes_the_same(has_bias):
    layer = torch.nn.Linear(16, 53, bias=has_bias)
    wider, x = AlignedLinear(layer.weight, layer.bias, 8), torch.randn(3, 5, 16)
    assert len(wider.weight) == 56 and wider(x).shape == (3, 5, 53)
    torch.testing.assert_close(wider(x), layer(x))


def test_the_tiny_model_is_not_degenerate(model):
    """The laws above mean something: what is said depends on the source and on what was said before."""
    prepared = PreparedModel(model)
    found = search(prepared.step, prepared.start(padded(SENTENCES), 3), 3)
    assert len({tuple(hypotheses[0].symbols[:6]) for hypotheses in found}) == len(SENTENCES)
    assert all(len(set(hypotheses[0].symbols)) > 2 for hypotheses in found)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 0.1), ("int8", 0.1)])
@torch.no_grad()
def test_a_model_with_an_output_bias_and_a_start_symbol_in_every_precision(precision, tolerance):
    torch.manual_seed(0)
    stack = StackConfig(num_layers=1, dim=32, ffn_dim=64, num_heads=4)
    sizes = {"source_vocab_size": 40, "target_vocab_size": 40, "encoder": stack, "decoder": stack}
    model = Transformer(ModelConfig(norm="post", activation="swish", output_bias=True, start_id=0, **sizes)).eval()
    model.output_bias.normal_()
    source, symbols = padded(SENTENCES), torch.full((3,), EOS)
    expected = model(source, torch.zeros(3, 1, dtype=torch.long))[:, 0]
    prepared = prepare(model, precision)
    logits, _ = prepared.step(symbols, prepared.start(source, beam=1))
    assert (logits - expected).abs().max() < tolerance
