"""A tiny model of every variant learns a toy task: to write digits in reverse."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from model_variants import EOS, NORMS, OPTIONS, PLAIN_CASES, POSITIONS, SUBLAYER_VARIANTS, VARIANTS, tiny_config
from pytest import mark

from deepnmt.model.config import StackConfig
from deepnmt.model.transformer import Transformer

DIM, LENGTH = 32, 2


def batch(generator, size):
    """source: digits and eos; target_input: eos and the digits reversed; target_output: those and eos."""
    digits = torch.randint(4, 9, (size, LENGTH), generator=generator)
    eos = torch.full((size, 1), EOS)
    reverse = digits.flip(1)
    return torch.cat([digits, eos], 1), torch.cat([eos, reverse], 1), torch.cat([reverse, eos], 1)


def exact_matches(model, source, target_output):
    """The share of sentences whose greedy decoding is right to the last symbol."""
    model.eval()
    cache, tokens, right = model.start(model.encode(source)), source.new_full((len(source),), EOS), True
    for expected in target_output.T:
        logits, cache = model.step(tokens, cache)
        tokens = logits.argmax(-1)
        right = right & (tokens == expected)
    model.train()
    return right.float().mean().item()


def learn(config, max_steps=400, lr=6e-3, seed=0):
    """Train until held-out sentences come out right, or to the last step. Returns the share that does."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config).train()
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=lr, betas=(0.9, 0.98), fused=True
    )
    held_out = batch(torch.Generator().manual_seed(99), 128)
    accuracy = 0.0
    for step in range(1, max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, step / 15)
        source, target_input, target_output = batch(generator, 32)
        loss = F.cross_entropy(model(source, target_input).flatten(0, 1), target_output.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and loss < 0.15:
            with torch.no_grad():
                accuracy = exact_matches(model, held_out[0], held_out[2])
            if accuracy > 0.95:
                break
    return accuracy


LEARNERS = list(PLAIN_CASES)
LEARNERS += [("residual", norm) for norm in SUBLAYER_VARIANTS if norm not in NORMS]


@mark.parametrize(("variant", "norm"), LEARNERS)
def test_every_variant_learns_to_reverse_digits(variant, norm):
    stack = StackConfig(
        num_layers=2,
        dim=DIM,
        ffn_dim=64,
        num_heads=4,
        connection=VARIANTS[variant],
        sublayer=SUBLAYER_VARIANTS[norm],
    )
    assert learn(replace(tiny_config(), encoder=stack, decoder=stack)) > 0.9


@mark.parametrize("option", OPTIONS)
def test_options_learn_to_reverse_digits(option):
    stack = StackConfig(num_layers=2, dim=DIM, ffn_dim=64, num_heads=4)
    options = {name: value for name, value in OPTIONS[option].items() if name not in ("encoder", "decoder")}
    assert learn(replace(tiny_config(**options), encoder=stack, decoder=stack)) > 0.9


@mark.parametrize("positions", POSITIONS)
def test_every_kind_of_positions_learns_to_reverse_digits(positions):
    stack = StackConfig(num_layers=2, dim=DIM, ffn_dim=64, num_heads=4)
    assert learn(replace(tiny_config(**POSITIONS[positions] | {"max_distance": 8}), encoder=stack, decoder=stack)) > 0.9
