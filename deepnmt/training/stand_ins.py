"""What a recorded pass computes with in the place of the parameters: leaves of its own.

The matrices and biases of linear layers are in the type of the products, so that no pass casts them or their gradients;
all others share the parameter's memory. A backward pass leaves their gradients as they were computed, instead of adding
each to what was there before, and then one kernel adds them all to the parameters' own, in fp32.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class StandIns:
    """`parts`: the parameters whose gradients are added at one time; all others are one more part."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, parts: Sequence[Sequence[nn.Parameter]] = ()) -> None:
        self.model = model
        of_linear, of_others = (
            {
                id(parameter)
                for module in model.modules()
                if isinstance(module, nn.Linear) is linear
                for parameter in module.parameters(recurse=False)
            }
            for linear in (True, False)
        )
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.leaves = {
            id(p): nn.Parameter(p.detach().to(dtype if id(p) in of_linear - of_others else p.dtype)) for p in parameters
        }
        pairs = [(self.leaf_of(p), p.detach()) for p in parameters]
        self.casts = [(leaf, value) for leaf, value in pairs if leaf.dtype is not value.dtype]
        placed = {id(p) for part in parts for p in part}
        rest = [p for p in parameters if id(p) not in placed]
        self.parts = [Part([(self.leaf_of(p), p) for p in part]) for part in (*parts, rest) if part]

    def leaf_of(self, parameter: Tensor) -> nn.Parameter:
        return self.leaves[id(parameter)]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model computes with them inside."""
        owners = [module._parameters for module in self.model.modules()]
        before = [dict(owned) for owned in owners]
        try:
            for owned in owners:
                owned.update({name: self.leaves.get(id(p), p) for name, p in owned.items()})
            yield
        finally:
            for owned, parameters in zip(owners, before, strict=True):
                owned.update(parameters)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the parameters' values."""
        if self.casts:
            leaves, parameters = zip(*self.casts, strict=True)
            torch._foreach_copy_(leaves, parameters)

    def forget_gradients(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None
        for part in self.parts:
            part.is_added = False

    @torch.no_grad()
    def add_gradients(self, is_first: Tensor, number: int | None = None) -> None:
        """Add those of a part to the parameters' gradients, or put them in their place; else of all parts left."""
        for part in self.parts if number is None else [self.parts[number]]:
            if not part.is_added:
                part.add(is_first)

    def locate_gradients(self) -> None:
        """After a recording, which has its gradients at addresses of its own."""
        for part in self.parts:
            part.locate()


class Part:
    def __init__(self, pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> None:
        self.pairs = pairs  # leaf, parameter
        self.is_added = False
        self.sums: dict[torch.dtype, Any] = {}  # by the type of the gradients

    def add(self, is_first: Tensor) -> None:
        self.is_added = True
        if not is_first.is_cuda:
            for gradient, total in self._gradients():
                total.copy_(torch.where(is_first > 0, gradient, total + gradient))
            return
        if not torch.cuda.is_current_stream_capturing():
            self.locate()
        for sums in self.sums.values():
            sums.launch(is_first)

    def locate(self) -> None:
        by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        for gradient, total in self._gradients():
            if total.is_cuda:
                by_type.setdefault(gradient.dtype, []).append((gradient, total))
        for dtype, pairs in by_type.items():
            from deepnmt.model.kernels.many_sums_triton import ManySums

            if dtype not in self.sums:
                self.sums[dtype] = ManySums([total for _, total in pairs])
            self.sums[dtype].locate([gradient for gradient, _ in pairs])

    def _gradients(self) -> list[tuple[Tensor, Tensor]]:
        """Of the last pass, and what they are added to; a parameter that it did not use has none."""
        return [(leaf.grad, p.grad) for leaf, p in self.pairs if leaf.grad is not None and p.grad is not None]
