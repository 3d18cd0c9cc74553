"""Admin: post-norm with residual weights that are initialised in a pass over data."""

import torch
from torch import Tensor, nn

from deepnmt.model.sublayers.sublayer import Branch, Function, Place, Sublayer, SublayerConfig


class AdminConfig(SublayerConfig):
    kind = "admin"


class Admin(Sublayer):
    """LN(w_i * x + F_i(x)), w_i a learned vector (Liu et al. 2020, https://arxiv.org/abs/2004.08249).

    Before the first step, with every w at one, a pass in training mode measures the variances of the stack's input x_0
    and of its branches; then w_i is initialised as sqrt(Var x_0 + sum_{j<i} Var F_j). The first, w_1, stays one. The
    paper's formula does not name the input; its authors' code adds it, and without it the lowest w are below one.
    """

    Config = AdminConfig
    placement = "post"
    learns_factors = True
    starts_from_data = True
    folds_into = "post"
    folds_through_norms = True

    def __init__(self, config: AdminConfig, place: Place) -> None:
        super().__init__(config, place)
        is_first = place.layer == 1 and not place.is_cross_attention and not place.ends_layer
        self.weight = nn.Parameter(torch.ones(place.dim), requires_grad=not is_first)

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        return self.norm((self.weight * x).to(x.dtype) + self.branch(function, x))

    def start_from(self, variances_below: list[float]) -> None:
        if len(variances_below) > 1:
            self.weight.fill_(sum(variances_below) ** 0.5)

    def fold_into(self, plain: Sublayer, function: Function, below: Sublayer | None) -> None:
        """The norm below multiplies by w, and the matrix after it divides by w. The first w of a stack is one."""
        if below is not None:
            for parameter in below.norm.parameters():
                parameter.mul_(self.weight)
            first, _ = function.ends()
            first.weight.div_(self.weight)
