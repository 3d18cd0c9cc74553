"""The cheap dropout is dropout: the right share, unbiased, independent from place to place and from seed to seed."""

import torch

from deepnmt.model.kernels.dropout import dealing, draw_seeds, fresh_seed, quartered_dropout, scattered_dropout


def dropped(seed: int, p: float = 0.3, shape: tuple[int, ...] = (1000, 512)) -> torch.Tensor:
    return scattered_dropout(torch.ones(shape), p, torch.tensor([seed], dtype=torch.int32)) == 0


def test_it_drops_its_share_and_keeps_the_mean() -> None:
    for p in (0.1, 0.3, 0.5):
        assert abs(dropped(1, p).double().mean() - p) < 0.003  # four standard deviations
        kept = scattered_dropout(torch.ones(1000, 512), p, torch.tensor([5], dtype=torch.int32))
        assert abs(kept.mean() - 1) < 0.006


def test_rows_and_columns_have_their_share_too() -> None:
    mask = dropped(7).double()
    assert (mask.mean(1) - 0.3).abs().max() < 5 * (0.21 / 512) ** 0.5
    assert (mask.mean(0) - 0.3).abs().max() < 5 * (0.21 / 1000) ** 0.5


def test_neighbours_and_seeds_are_independent() -> None:
    mask = dropped(1)
    for other in (mask.roll(1, 1), mask.roll(1, 0), mask.roll(2, 1), dropped(2), dropped(1 + 2**16), dropped(-1)):
        both = (mask & other).double().mean()
        assert abs(both - 0.09) < 0.003


def test_the_same_seed_drops_the_same_and_the_gradient_follows() -> None:
    seed = torch.tensor([3], dtype=torch.int32)
    x = torch.randn(64, 32, requires_grad=True)
    out = scattered_dropout(x, 0.2, seed)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, out != 0)
    assert torch.equal(out, scattered_dropout(x, 0.2, seed))


def test_quarters_of_random_words_drop_their_share_independently() -> None:
    masks = [quartered_dropout(torch.ones(1000, 513), 0.3) == 0 for _ in range(2)]
    for mask in masks:
        assert abs(mask.double().mean() - 0.3) < 0.003
        for place in range(4):  # each quarter of a word alone
            assert abs(mask.flatten()[place::4].double().mean() - 0.3) < 0.006
        for other in (mask.roll(1, 1), mask.roll(1, 0), mask.roll(3, 1)):
            assert abs((mask & other).double().mean() - 0.09) < 0.003
    assert abs((masks[0] & masks[1]).double().mean() - 0.09) < 0.003
    kept = quartered_dropout(torch.ones(1000, 513), 0.1)
    assert abs(kept.mean() - 1) < 0.003
    torch.manual_seed(3)
    first = quartered_dropout(torch.ones(7, 3), 0.5)
    torch.manual_seed(3)
    assert torch.equal(first, quartered_dropout(torch.ones(7, 3), 0.5))


def test_layers_take_the_seeds_dealt_to_them_and_then_draw_their_own() -> None:
    cpu = torch.device("cpu")
    seeds = draw_seeds(2, cpu)
    taken = []
    for rows in seeds:
        with dealing(rows):
            taken += [int(fresh_seed(cpu)) for _ in rows]
            assert fresh_seed(cpu).shape == (1,)
    assert taken == seeds[:, :, 0].flatten().tolist() and len(set(taken)) == len(taken)
    torch.manual_seed(1)
    assert fresh_seed(cpu) != fresh_seed(cpu)
