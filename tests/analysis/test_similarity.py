"""Linear CKA from sums over tokens: the plain formula, its invariances, and no dependence on the batches."""

import torch
from pytest import mark

from deepnmt.analysis.similarity import Similarity

TOKENS, DIM = 50, 6


def representations(count=4, offset=0.0):
    torch.manual_seed(0)
    common = torch.randn(TOKENS, DIM, dtype=torch.float64)
    return [common + k * torch.randn_like(common) + offset for k in range(count)]


def similarity(found, sizes=(TOKENS,)):
    sums = Similarity(len(found), DIM)
    for parts in zip(*(one.split(sizes) for one in found), strict=True):
        sums.add(parts)
    return sums.matrix()


def plain(x, y):
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with the Gram matrices of the tokens (Kornblith et al. 2019)."""
    centre = torch.eye(len(x), dtype=x.dtype) - 1 / len(x)

    def hsic(k, m):
        return torch.trace(k @ centre @ m @ centre)

    k, m = x @ x.T, y @ y.T
    return hsic(k, m) / (hsic(k, k) * hsic(m, m)).sqrt()


@mark.parametrize("offset", [0.0, 1000.0])
def test_it_is_the_plain_formula(offset):
    """Also far from the origin, where the formula itself would lose digits."""
    expected = torch.stack([torch.stack([plain(x, y) for y in representations()]) for x in representations()])
    found = similarity(representations(offset=offset))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 if offset else 1e-13)


def test_batches_do_not_matter():
    found = representations()
    torch.testing.assert_close(similarity(found, [1, 20, 0, 29]), similarity(found), rtol=0, atol=1e-13)


def test_a_representation_is_like_itself_rotated_scaled_and_moved():
    x, y, *_ = representations()
    turn, _ = torch.linalg.qr(torch.randn(DIM, DIM, dtype=x.dtype))
    matrix = similarity([x, -3 * x @ turn + 5, y])
    torch.testing.assert_close(matrix[0, :2], torch.ones(2, dtype=x.dtype), rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix[0, 2], matrix[1, 2], rtol=0, atol=1e-12)
    assert matrix[0, 2] < 0.9


def test_what_does_not_vary_is_like_nothing():
    x = representations()[0]
    expected = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=x.dtype)
    torch.testing.assert_close(similarity([x, torch.ones_like(x)]), expected)


def test_single_precision_is_summed_in_double():
    found = representations(offset=30.0)
    torch.testing.assert_close(similarity([x.float() for x in found]), similarity(found), rtol=0, atol=1e-5)
