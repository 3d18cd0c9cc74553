"""Muon: its update is nearly orthogonal, stacked matrices move as one by one, and a run resumes to the last bit."""

import math
from dataclasses import replace

import pytest
import torch
from small import ALONE, CONFIG_MODEL, TRAINING, flat, run_to_end

from deepnmt.model.connections.fusion import FusionConfig
from deepnmt.model.transformer import Transformer
from deepnmt.training.config import TrainingConfig
from deepnmt.training.curves import read_log
from deepnmt.training.muon import COEFFICIENTS, ROUNDS, Muon, orthogonalize, update_scale
from deepnmt.training.optimizer import apply_update, build_optimizer, gradient_norms, optimizer_tensors
from deepnmt.training.verdict import clipping_divisor

MUON = replace(TRAINING, optimizer="muon", weight_decay=0.01, max_steps=16, ema_decay=0.9, clip_norm=0.5)
ZERO, ONE = torch.tensor(0.0), torch.tensor(1.0)
SHAPES = [(24, 24), (16, 48), (48, 16)]


def plain_orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """One matrix, through its singular values: what Newton-Schulz does to them, without Newton-Schulz."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    a, b, c = COEFFICIENTS
    s = s / s.norm()
    for _ in range(ROUNDS):
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ v


def plain_step(weight, gradient, moment, rate, config):
    """One matrix: momentum, Nesterov's look ahead, orthogonalisation, decay. Returns weight and momentum."""
    moment = config.momentum * moment + (1 - config.momentum) * gradient
    ahead = config.momentum * moment + (1 - config.momentum) * gradient
    scale = 0.2 * math.sqrt(max(weight.shape))
    return weight * (1 - rate * config.weight_decay) - rate * scale * plain_orthogonalize(ahead), moment


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_of_the_update_are_near_one(shape, dtype):
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(5, *shape), full_matrices=False)
    spread = torch.logspace(-0.5, 2, min(shape))
    values = torch.linalg.svdvals(orthogonalize((u * spread) @ v, dtype).float())
    assert values.shape == (5, min(shape)) and values.min() > 0.3 and values.max() < 1.3
    equal = torch.linalg.svdvals(orthogonalize(u @ v * 7, dtype).float())
    assert equal.min() > 0.65 and equal.max() < 1.25


@pytest.mark.parametrize("shape", SHAPES)
def test_stacked_matrices_are_orthogonalised_as_one_by_one(shape):
    torch.manual_seed(0)
    matrices = torch.randn(4, *shape) * torch.tensor([1e-6, 1.0, 1e3, 0.0]).view(4, 1, 1)
    together = orthogonalize(matrices)
    assert together.shape == matrices.shape and not together[3].any()
    for one, found in zip(matrices[:3], together[:3], strict=True):
        torch.testing.assert_close(found, orthogonalize(one[None])[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.double(), plain_orthogonalize(one), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (96, 32)])
def test_the_update_has_the_size_of_adams(shape):
    torch.manual_seed(0)
    update = orthogonalize(torch.randn(1, *shape))[0] * update_scale(*shape)
    assert update.square().mean().sqrt() == pytest.approx(0.2, rel=0.2)


def give_gradients(model, step, scale=1.0):
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * scale).to(parameter.dtype)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("matrix_lr", [None, 3e-2])
def test_every_parameter_moves_as_by_the_plain_twins(scale, matrix_lr):
    config = replace(MUON, lr=1e-2, matrix_lr=matrix_lr)
    torch.manual_seed(0)
    model, plain = Transformer(CONFIG_MODEL), Transformer(CONFIG_MODEL).double()
    plain.load_state_dict(model.state_dict())
    optimizer = build_optimizer(model, config, ALONE)
    matrices = {name: p for name, p in plain.named_parameters() if ".layers." in name and p.ndim == 2}
    others = [p for name, p in plain.named_parameters() if name not in matrices]
    adam = torch.optim.AdamW(
        [
            {"params": [p for p in others if p.ndim == 2], "weight_decay": config.weight_decay},
            {"params": [p for p in others if p.ndim != 2], "weight_decay": 0.0},
        ],
        betas=config.betas,
    )
    moments = dict.fromkeys(matrices, 0.0)
    assert len(matrices) == 2 * 4 + 7
    for step, rate in enumerate((1e-2, 5e-3, 2e-3)):
        give_gradients(model, step, scale)
        give_gradients(plain, step)
        norms = gradient_norms(model, torch.tensor(scale))
        apply_update(optimizer, rate, clipping_divisor(norms.total, config.clip_norm, torch.tensor(scale)), ZERO)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), config.clip_norm)
        with torch.no_grad():
            for name, weight in matrices.items():
                moved, moments[name] = plain_step(
                    weight, weight.grad, moments[name], rate * (3.0 if matrix_lr else 1.0), config
                )
                weight.copy_(moved)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
    for (name, found), wanted in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=2e-5, msg=name)


def test_words_and_connections_are_not_matrices():
    """An untied output, embeddings, and a connection whose weights are a table."""
    encoder = replace(CONFIG_MODEL.encoder, connection=FusionConfig())
    model = Transformer(replace(CONFIG_MODEL, share_embeddings=False, encoder=encoder))
    optimizer = build_optimizer(model, MUON, ALONE)
    assert isinstance(optimizer, Muon)
    names = {name for name, p in model.named_parameters() if "momentum" in optimizer.state[p]}
    assert names and all(".layers." in name and name.endswith(".weight") for name in names)
    moved = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(moved) == len(set(moved)) == len(list(model.parameters()))


def test_bad_gradient_changes_neither_parameters_nor_the_state():
    torch.manual_seed(0)
    model = Transformer(CONFIG_MODEL)
    optimizer = build_optimizer(model, MUON, ALONE)
    give_gradients(model, 1)
    apply_update(optimizer, 1e-2, ONE, ZERO)
    before = [tensor.clone() for tensor in (flat(model), *optimizer_tensors(model, optimizer).values())]
    give_gradients(model, 2)
    model.encoder.layers[0].feed_forward.expand.weight.grad[0, 0] = math.inf
    model.encoder.layers[0].feed_forward.expand.weight.grad[0, 1] = math.nan
    apply_update(optimizer, 1e-2, ONE, ONE)
    after = [flat(model), *optimizer_tensors(model, optimizer).values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_it_learns(tmp_path):
    config = replace(MUON, max_steps=80, tokens_per_update=256, log_every=10, validate_every=80, save_every=80)
    run_to_end(tmp_path, replace(config, lr=3e-2, warmup_steps=10, clip_norm=1.0))
    losses = [line["nll"] for line in read_log(tmp_path) if line["kind"] == "train"]
    assert losses[-1] < 0.75 * losses[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "muon", "parallel": "fsdp"}, 'optimizer = "muon" needs .* parallel = "fsdp"'),
        ({"matrix_lr": 1e-3}, 'matrix_lr = 0.001 needs optimizer = "muon"'),
        ({"optimizer": "muon", "matrix_lr": -1.0}, "matrix_lr = -1.0 must be above 0"),
        ({"optimizer": "muon", "momentum": 1.0}, "momentum = 1.0 must be"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(max_steps=9, **settings)
