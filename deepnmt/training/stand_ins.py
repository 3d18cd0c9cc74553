"""Leaves that a recorded pass computes with instead of the parameters.

Those of linear layers are copies in the type of the products, so that no pass casts weights or gradients; the others
share the parameter's memory. A backward pass leaves their gradients as computed, instead of adding each to an earlier
one, and then one kernel adds them all to the parameters' own gradients, in fp32.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class StandIns:
    """`parts`: groups of parameters whose gradients are added together; the other parameters are one more group."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, parts: Sequence[Sequence[nn.Parameter]] = ()) -> None:
        self.model = model
        of_linear, of_others = set[int](), set[int]()
        for module in model.modules():
            kind = of_linear if isinstance(module, nn.Linear) else of_others
            kind.update(map(id, module.parameters(recurse=False)))
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.leaves = {
            id(p): nn.Parameter(p.detach().to(dtype if id(p) in of_linear - of_others else p.dtype)) for p in parameters
        }
        pairs = [(self.leaf_of(p), p.detach()) for p in parameters]
        self.casts = [(leaf, value) for leaf, value in pairs if leaf.dtype is not value.dtype]
        placed = {id(p) for part in parts for p in part}
        rest = [p for p in parameters if id(p) not in placed]
        numbers = {id(p): number for number, p in enumerate(parameters)}
        self.parts = [Part([(self.leaf_of(p), p, numbers[id(p)]) for p in part]) for part in (*parts, rest) if part]

    def leaf_of(self, parameter: Tensor) -> nn.Parameter:
        return self.leaves[id(parameter)]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model computes with the stand-ins."""
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
        """Copy the current values of the parameters."""
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
        """Add the gradients of one part, or of all that are left, to the parameters' own; the first replaces them."""
        for part in self.parts if number is None else [self.parts[number]]:
            if not part.is_added:
                part.add(is_first)

    def norms(self) -> Tensor:
        """The norms of the parameters' gradients, in order, from the squares that the adding kernel has left."""
        norms = torch.zeros(len(self.leaves), device=next(self.model.parameters()).device)
        for part in self.parts:
            part.find_norms(norms)
        return norms

    def locate_gradients(self) -> None:
        """Look up the addresses of the gradients after a recording, which has its own."""
        for part in self.parts:
            part.locate()


class Part:
    """Parameters, their leaves, and their numbers among all parameters."""

    def __init__(self, members: list[tuple[nn.Parameter, nn.Parameter, int]]) -> None:
        self.members = members
        self.is_added = False
        self.sums: dict[torch.dtype, tuple[Any, Tensor]] = {}  # by the type of the gradients: sums, and their numbers

    def add(self, is_first: Tensor) -> None:
        self.is_added = True
        if not is_first.is_cuda:
            for gradient, total, _ in self._gradients():
                total.copy_(torch.where(is_first > 0, gradient, total + gradient))
            return
        if not torch.cuda.is_current_stream_capturing():
            self.locate()
        for sums, _ in self.sums.values():
            sums.launch(is_first)

    def find_norms(self, norms: Tensor) -> None:
        for sums, numbers in self.sums.values():
            sums.norms(norms, numbers)

    def locate(self) -> None:
        by_type: dict[torch.dtype, list[tuple[Tensor, Tensor, int]]] = {}
        for gradient, total, number in self._gradients():
            if total.is_cuda:
                by_type.setdefault(gradient.dtype, []).append((gradient, total, number))
        for dtype, found in by_type.items():
            from deepnmt.model.kernels.many_sums_triton import ManySums

            gradients, totals, numbers = zip(*found, strict=True)
            if dtype not in self.sums:
                self.sums[dtype] = ManySums(totals), torch.tensor(numbers, dtype=torch.int32, device=totals[0].device)
            self.sums[dtype][0].locate(gradients)

    def _gradients(self) -> list[tuple[Tensor, Tensor, int]]:
        """Those of the last pass, and what they are added to; a parameter that it did not use has none."""
        return [(leaf.grad, p.grad, i) for leaf, p, i in self.members if leaf.grad is not None and p.grad is not None]
