"""How alike the representations of layers are: linear CKA, from sums over tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDING = 1e-12  # what is left of a constant after centring, and more


class Similarity:
    """Linear CKA between `count` representations X of the same tokens, which arrive in batches.

    CKA(X, Y) = |X'Y|^2 / (|X'X| |Y'Y|), with centred columns and Frobenius norms (Kornblith et al. 2019, section 3,
    https://arxiv.org/abs/1905.00414). It is 1 for equal representations and does not change when one of them is rotated
    or scaled. Only the products X'Y and the sums of X are kept, so the memory does not depend on the number of tokens.
    They are in fp64, because centring them afterwards cancels.
    """

    def __init__(self, count: int, dim: int, device: torch.device | str = "cpu") -> None:
        kind = {"dtype": torch.float64, "device": device}
        self.tokens, self.sums = 0, torch.zeros(count, dim, **kind)  # type: ignore[call-overload]
        # Row i has the products with representations i, i + 1, ... beside each other.
        self.products = [torch.zeros(dim, (count - i) * dim, **kind) for i in range(count)]  # type: ignore[call-overload]

    def add(self, representations: Sequence[Tensor]) -> None:
        """Each (tokens, dim)."""
        count, dim = self.sums.shape
        side_by_side = torch.cat(list(representations), dim=1).to(self.sums)
        self.tokens += len(side_by_side)
        self.sums += side_by_side.sum(0).view(count, dim)
        for i, products in enumerate(self.products):
            products.addmm_(side_by_side[:, i * dim : (i + 1) * dim].T, side_by_side[:, i * dim :])

    def matrix(self) -> Tensor:
        """(count, count); zero for a representation that is the same for all tokens, which is like no other."""
        count, dim = self.sums.shape
        squares = self.sums.new_zeros(count, count)  # |X'Y|^2
        for i, products in enumerate(self.products):
            centred = products - torch.outer(self.sums[i], self.sums[i:].flatten()) / max(self.tokens, 1)
            squares[i, i:] = centred.view(dim, count - i, dim).square().sum((0, 2))
        own = squares.diagonal().sqrt()
        before_centring = torch.stack([products[:, :dim].norm() for products in self.products])
        own = own.where(own > ROUNDING * before_centring, torch.inf)
        upper = squares / torch.outer(own, own)
        return upper.triu(1).T + upper
