"""What holds for every connection, norm placement and stack."""

from dataclasses import replace
from functools import cache

import torch
from model_variants import CASE_IDS, CASES, PAD, case_config, padded, scrambled, sentences, tiny_config
from pytest import mark, raises

from deepnmt.analysis.size import measure
from deepnmt.model.config import StackConfig
from deepnmt.model.sequences import PackedSequences
from deepnmt.model.transformer import Transformer

every_case = mark.parametrize("case", CASES, ids=CASE_IDS)
made = cache(lambda case: scrambled(case_config(*case)))


def model_of(case):
    """The laws share their models, and leave the weights alone."""
    model = made(case).eval()
    model.zero_grad()
    return model


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


@every_case
def test_padding_changes_neither_values_nor_gradients(case):
    model = model_of(case)
    sources, targets = sentences(7, 3, 5), sentences(4, 6, 1, seed=2)
    alone = [model(source[None], target[None])[0] for source, target in zip(sources, targets, strict=True)]
    sum(logits.tanh().sum() for logits in alone).backward()
    expected = gradients(model)

    model.zero_grad()
    together = model(padded(sources, extra=2), padded(targets, extra=3))
    real = [logits[: len(target)] for logits, target in zip(together, targets, strict=True)]
    sum(logits.tanh().sum() for logits in real).backward()

    torch.testing.assert_close(torch.cat(real), torch.cat(alone), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(model), expected, rtol=1e-5, atol=1e-5)


@every_case
def test_packed_sentences_equal_padded_ones(case):
    """Laid end to end, with empty places among them and an unused tail: the same values, the same gradients."""
    model = model_of(case)
    sources, targets = sentences(7, 3, 5), sentences(4, 6, 1, seed=2)
    together = model(padded(sources), padded(targets))
    real = torch.cat([logits[: len(target)] for logits, target in zip(together, targets, strict=True)])
    real.tanh().sum().backward()
    expected = gradients(model)

    model.zero_grad()
    packed = model.project(model.features(pack(sources, tail=4), pack(targets, tail=2)))
    assert packed.isfinite().all()
    torch.testing.assert_close(packed[: len(real)], real, rtol=1e-9, atol=1e-9)
    packed[: len(real)].tanh().sum().backward()
    torch.testing.assert_close(gradients(model), expected, rtol=1e-5, atol=1e-5)


def pack(lines, tail):
    """An empty sentence after the first and two at the end."""
    lengths = [len(lines[0]), 0, *map(len, lines[1:]), 0, 0]
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    return PackedSequences(torch.cat([*lines, torch.full((tail,), PAD)]), offsets)


@every_case
def test_cached_decoding_equals_uncached(case):
    """So the decoder does not see the future either: a step is never given it."""
    model = model_of(case)
    source = padded(sentences(6, 4))
    target = torch.stack(sentences(5, 5, seed=2))
    expected = model(source, target)
    cache = model.start(model.encode(source))
    for position, tokens in enumerate(target.T):
        logits, cache = model.step(tokens, cache)
        torch.testing.assert_close(logits, expected[:, position], rtol=1e-9, atol=1e-9)


@mark.parametrize("families", [1, 3], ids=["beam", "samples"])
@every_case
def test_cached_beams_follow_their_hypotheses(case, families):
    """Rows are moved within their sentence, unless each is its own family; then one sentence leaves. Each row still
    equals its uncached history."""
    model = model_of(case)
    beam, source = 3, padded(sentences(6, 4, 5))
    cache = model.start(model.encode(source), beam=beam // families, families=families)
    history = torch.empty(len(source) * beam, 0, dtype=torch.long)

    def advance(cache, history, source, seed):
        tokens = torch.stack(sentences(*[1] * len(history), seed=seed)).long()
        logits, cache = model.step(tokens[:, 0], cache)
        history = torch.cat([history, tokens], dim=1)
        expected = model(source.repeat_interleave(beam, 0), history)[:, -1]
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        return cache, history

    cache, history = advance(cache, history, source, seed=3)
    cache, history = advance(cache, history, source, seed=4)
    rows = torch.tensor([2, 2, 0, 3, 5, 4, 7, 7, 7]) if families == 1 else torch.arange(9)
    cache, history = advance(cache.reorder(rows), history[rows], source, seed=5)
    kept = torch.tensor([2, 0])
    rows = (kept[:, None] * beam + torch.arange(beam)).flatten()
    cache, history = advance(cache.select(kept), history[rows], source[kept], seed=6)
    advance(cache, history, source[kept], seed=7)


@every_case
def test_every_parameter_has_a_finite_gradient(case):
    model = scrambled(case_config(*case), torch.float32).train()
    source, target = padded(sentences(7, 4)), padded(sentences(5, 6, seed=2))
    for dtype in (torch.float32, torch.bfloat16):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(source, target)
        assert logits.dtype == dtype
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), target.roll(-1, 1).flatten()).backward()
        for name, parameter in model.named_parameters():
            assert parameter.dtype == torch.float32, name
            if parameter.requires_grad:
                assert parameter.grad is not None, (dtype, name)
                assert parameter.grad.dtype == torch.float32, (dtype, name)
                assert parameter.grad.isfinite().all(), (dtype, name)
                assert parameter.grad.any(), (dtype, name)


@every_case
def test_recomputing_activations_changes_no_gradient(case):
    model = model_of(case).train()
    source, target = padded(sentences(7, 4)), padded(sentences(5, 6, seed=2))
    found = {}
    for on in (True, False):
        model.checkpoint_activations(on)
        model.zero_grad()
        torch.manual_seed(3)
        model(source, target).tanh().sum().backward()
        found[on] = gradients(model)
    torch.testing.assert_close(found[True], found[False], rtol=1e-6, atol=1e-6)


def test_widths_heads_and_depths_of_the_stacks_are_independent():
    """The paper's "+ big encoder"."""
    config = tiny_config(share_embeddings=False, source_vocab_size=20, tie_output=False, activation="swiglu")
    wide = StackConfig(num_layers=4, dim=24, ffn_dim=40, num_heads=2)
    model = scrambled(replace(config, encoder=wide))
    source, target = padded(sentences(6, 4)), torch.stack(sentences(5, 5, seed=2))
    logits = model(source, target)
    assert logits.shape == (2, 5, 14)
    cache = model.start(model.encode(source))
    for position, tokens in enumerate(target.T):
        stepped, cache = model.step(tokens, cache)
        torch.testing.assert_close(stepped, logits[:, position], rtol=1e-9, atol=1e-9)


def test_a_sentence_beyond_learned_positions_is_refused_in_words():
    model = Transformer(tiny_config(positions="learned", max_positions=5)).eval()
    source = torch.stack(sentences(6))
    with raises(ValueError, match="a sentence of 6 tokens is longer than max_positions = 5"):
        model.encode(source)
    cache = model.start(model.encode(source[:, :5]))
    for tokens in source[0, :5]:
        _, cache = model.step(tokens[None], cache)
    with raises(ValueError, match="a sentence of 6 tokens is longer than max_positions = 5"):
        model.step(source[:, 5], cache)


@every_case
def test_every_parameter_has_its_place_in_the_table_of_sizes(case):
    config = case_config(*case)
    parameters = sum(parameter.numel() for parameter in Transformer(config).parameters())
    assert sum(part.parameters for part in measure(config)) == parameters
