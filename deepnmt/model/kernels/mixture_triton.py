"""The weighted sums of layer outputs on a GPU, with as few passes over memory as they allow.

Row l of a stack is sum_k W[l, k] * norm_k(y_k). The outputs stay where the layers left them, and the gradients g_l of
the rows where autograd left them: a kernel finds them by a table of addresses. A LayerNorm is computed while an output
is read, from its mean and its deviation, so that neither a normalised copy nor a stacked history exists.

A row reads all outputs before it, so deep stacks wait for memory. Every fourth row looks ahead: while it reads the
outputs it also adds up what the next three rows will need of them, and those then read only the outputs that came
since. Deep stacks come in blocks of 16 rows: before the first row of a block, one matrix product adds up what all of
them need of the outputs of earlier blocks. The gradient of y_k, which is sum_{l >= k} W[l, k] * g_l through the
LayerNorm, is gathered in the same way when the backward pass reaches layer k; the gradients of W come from the same
reading. The programs of a gather take the tokens in turn, and those that share a token by columns come one after the
other, so that together they read neighbouring memory.

The kernels are in `mixture_sums_triton`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from deepnmt.model.kernels.mixture_sums_triton import gather_ahead, gather_column, mix_ahead, mix_row

MIXED_AHEAD = 4  # a row that is a multiple of this adds up as many rows, itself included
UNROLLED, SUMS_PER_WARP = 2, 4096  # outputs that a row reads at a time, and sums that a warp holds
BLOCK, DEEP = 16, 16  # stacks of more rows are mixed in blocks, which keeps 13 more outputs in memory
BLOCK_TILE, BLOCK_WARPS, BLOCK_STAGES = (4, 64), 4, 5  # tokens and columns of a program
GATHERED_AHEAD = 8
# Of gathering ahead, up to 64 rows and more: gradients that a program gathers at a time, stages, programs at once.
AHEAD, DEEP_AHEAD = (4096, 4, 528), (8192, 3, 396)
PROGRAMS = 1056  # of a gather: each keeps a share of the sums over all tokens


class FusedMixtureTape:
    """One pass of a stack whose row l is `sum_k matrix[l, k] * norm_k(y_k)`. matrix: (rows, rows) in fp32.

    A norm other than LayerNorm is computed outside.
    """

    def __init__(self, matrix: Tensor, norms: Sequence[nn.Module]) -> None:
        self.matrix, self.norms = matrix, norms
        self.entered = 0
        self.work: _Work | None = None
        self.token = matrix.new_empty(0)
        self.mixed: tuple[int, Tensor] | None = None

    def enter(self, output: Tensor) -> Tensor:
        norm = self.norms[self.entered]
        if not isinstance(norm, nn.LayerNorm):
            output = norm(output)
        output = _readable(output if self.work is None else output.to(self.work.dtype))
        if self.work is None:
            gains, biases = self._stacked(output.shape[-1])
            self.work = _Work(self.matrix, gains, biases, self.norms, output)
            self.token = _Open.apply(self.matrix, gains, biases, self.work)
        self.entered += 1
        return output

    def mix(self, history: Sequence[Tensor], row: int) -> Tensor:
        """Row `row`. Asked again, the same tensor: its gradients must come in one sum."""
        if self.mixed is None or self.mixed[0] != row:
            mixed, self.token = _Row.apply(self.token, history[row], self.work, row)
            self.mixed = row, mixed
        return self.mixed[1]

    def _stacked(self, dim: int) -> tuple[Tensor | None, Tensor | None]:
        """The gains and biases of all norms: (rows, dim) in fp32."""
        if not any(isinstance(norm, nn.LayerNorm) for norm in self.norms):
            return None, None
        one, zero = self.matrix.new_ones(dim), self.matrix.new_zeros(dim)
        pairs = [(norm.weight, norm.bias) if isinstance(norm, nn.LayerNorm) else (one, zero) for norm in self.norms]
        gains, biases = (torch.stack(parts).float() for parts in zip(*pairs, strict=True))
        return gains, biases


class _Work:
    """What the kernels of a pass share. It knows nothing of autograd's graph, which holds it."""

    def __init__(
        self, matrix: Tensor, gains: Tensor | None, biases: Tensor | None, norms: Sequence[nn.Module], like: Tensor
    ) -> None:
        self.matrix = matrix.detach().contiguous()
        self.has_norms = gains is not None
        self.gains, self.biases = (self.matrix if part is None else part.detach() for part in (gains, biases))
        # What the biases add to each row, exact also where products of fp32 may be rounded.
        self.constants = (self.matrix.tril().unsqueeze(2) * self.biases).sum(1) if self.has_norms else self.matrix
        self.eps = [norm.eps if isinstance(norm, nn.LayerNorm) else None for norm in norms]
        self.num_rows, self.dim, self.count = len(matrix), like.shape[-1], like.numel() // like.shape[-1]
        self.width = max(16, triton.next_power_of_2(self.dim))
        self.dtype = like.dtype
        self.deep = self.num_rows > DEEP
        # Padded with zeros, so that a kernel may read past the last row.
        self.columns = F.pad(self.matrix.T, (0, -self.num_rows % BLOCK + BLOCK))
        self.addresses = torch.empty(2, self.num_rows, dtype=torch.long, device=like.device)
        self.stats = matrix.new_empty(self.num_rows if self.has_norms else 0, 2, self.count)
        self.num_mixed = 0
        self.mixed_ahead: Tensor | None = None  # of the rows after the last look ahead
        self.gathered_ahead: Tensor | None = None  # of the columns up to the last look ahead
        self.gradients: list[Tensor] = []  # whose addresses the table has
        self.shares: Tensor | None = None  # (rows, programs, gradients of gain, bias and some weights)
        self.d_matrix: Tensor | None = None

    def mix(self, row: int, output: Tensor) -> Tensor:
        self.num_mixed = row + 1
        first, ahead = self._looks(row)
        if ahead > 1 and self.mixed_ahead is None:
            self.mixed_ahead = output.new_empty(BLOCK if self.deep else MIXED_AHEAD - 1, self.count, self.dim)
        if self.deep and row and row % BLOCK == 0:
            self._mix_ahead(row)
        mixed, tokens = torch.empty_like(output), max(1, 2048 // (self.width * max(4, ahead)))
        mix_row[(triton.cdiv(self.count, tokens),)](
            output, self.gains, self.constants, self.columns, self.addresses, self.stats,
            mixed if self.mixed_ahead is None else self.mixed_ahead, mixed,
            self.count, self.dim, first, row, self.num_rows, self.columns.shape[1],
            row % BLOCK if self.deep else row % MIXED_AHEAD - 1, self.eps[row] or 0.0,
            NORM=self.eps[row] is not None, NORMS=self.has_norms, PARTIAL=first > 0, A=ahead,
            R=tokens, D=self.width, EVEN=self.width == self.dim and self.count % tokens == 0,
            U=UNROLLED, num_warps=max(1, self.width // 1024, self.width * ahead // SUMS_PER_WARP),
        )  # fmt: skip
        if row + 1 == self.num_rows:
            self.mixed_ahead = None
        return mixed

    def _looks(self, row: int) -> tuple[int, int]:
        """The first output that this row reads, as those before it are summed; and how many rows it adds up."""
        block = row - row % BLOCK if self.deep else 0
        looked = row - row % MIXED_AHEAD
        if block < row == looked:
            return block, min(MIXED_AHEAD, triton.next_power_of_2(self.num_rows - row))
        return looked + 1 if looked > block else block, 1

    def _mix_ahead(self, row: int) -> None:
        tokens, columns = BLOCK_TILE[0], min(BLOCK_TILE[1], self.width)
        mix_ahead[(triton.cdiv(self.dim, columns) * triton.cdiv(self.count, tokens),)](
            self.addresses, self.columns, self.stats, self.gains, self.mixed_ahead,
            self.count, self.dim, row, self.num_rows, self.columns.shape[1],
            NORMS=self.has_norms, SPLIT=self.dtype.itemsize < 4, A=BLOCK, T=tokens, E=columns,
            EVEN=self.count % tokens == 0 and self.dim % columns == 0, S=BLOCK_STAGES, num_warps=BLOCK_WARPS,
        )  # fmt: skip

    def gather(self, depth: int, output: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of y_depth, once those of the rows from there on have arrived."""
        gradient = _readable(gradient.to(output.dtype))
        self.gradients.append(gradient)
        stop, partial = self._gather_ahead(depth, gradient)
        # A warp has a token at a time, and a narrow one needs few registers.
        programs = min(triton.cdiv(self.count, 2), PROGRAMS * max(1, 512 // self.width))
        if self.shares is None:
            self.shares = self.matrix.new_empty(self.num_mixed, programs, 2 * self.dim + GATHERED_AHEAD)
        d_output = torch.empty_like(output)
        gather_column[(programs,)](
            gradient, output, self.addresses, self.matrix, self.stats, self.gains, self.biases,
            output if partial is None else partial, d_output, self.shares[depth],
            self.count, self.dim, depth, stop, self.num_rows,
            PARTIAL=partial is not None, NORM=self.eps[depth] is not None,
            J=GATHERED_AHEAD, K=4 if stop - depth <= 4 else GATHERED_AHEAD, D=self.width,
            EVEN=self.width == self.dim, num_warps=max(1, self.width // 512),
        )  # fmt: skip
        return d_output

    def _gather_ahead(self, depth: int, gradient: Tensor) -> tuple[int, Tensor | None]:
        """Before which row column `depth` has to be gathered, and what was found of the rows from there on."""
        distance = self.num_mixed - 1 - depth
        if distance < GATHERED_AHEAD:
            return self.num_mixed, None
        start = depth + distance % GATHERED_AHEAD
        first = start - GATHERED_AHEAD + 1
        if depth == start:
            if self.gathered_ahead is None:
                self.gathered_ahead = gradient.new_empty(GATHERED_AHEAD, self.count, self.dim)
            lanes = max(32, triton.next_power_of_2(self.num_mixed - depth))
            tile, stages, programs = DEEP_AHEAD if lanes > 64 else AHEAD
            columns = min(self.width, tile // lanes)
            tiles = triton.cdiv(self.dim, columns)
            grid = tiles, min(self.count, max(1, programs // tiles))
            shares = self.matrix.new_empty(grid[0] * grid[1], GATHERED_AHEAD, lanes)
            gather_ahead[grid](
                gradient, self.addresses, self.matrix, self.stats, self.gains, self.biases, self.gathered_ahead, shares,
                self.count, self.dim, depth, self.num_mixed, self.num_rows,
                NORMS=self.has_norms, SPLIT=gradient.element_size() < 4, J=GATHERED_AHEAD, L=lanes, E=columns,
                num_warps=4, num_stages=stages,
            )  # fmt: skip
            found = shares.sum(0).T[: self.num_mixed - depth, max(0, -first) :]
            self._gradient_of_matrix()[depth : self.num_mixed, max(0, first) : depth + 1] = found
        assert self.gathered_ahead is not None
        return start, self.gathered_ahead[depth - first]

    def gradients_of_parameters(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Of W, the gains and the biases, when the backward pass has been through all rows."""
        assert self.shares is not None
        rows = self.num_rows
        sums = F.pad(self.shares.sum(1), (0, 0, 0, rows - self.num_mixed))
        d_gains, d_biases, d_columns = sums.split([self.dim, self.dim, GATHERED_AHEAD], 1)
        d_matrix = self._gradient_of_matrix()
        d_matrix.as_strided((rows, GATHERED_AHEAD), (rows + 1, rows)).add_(d_columns)  # [k + i, k] for (k, i)
        self.gradients, self.shares, self.gathered_ahead, self.d_matrix = [], None, None, None
        return d_matrix[:rows], *((d_gains, d_biases) if self.has_norms else (None, None))

    def _gradient_of_matrix(self) -> Tensor:
        """With rows below the last, which stay zero."""
        if self.d_matrix is None:
            self.d_matrix = self.matrix.new_zeros(self.num_rows + GATHERED_AHEAD, self.num_rows)
        return self.d_matrix


def _readable(tensor: Tensor) -> Tensor:
    """Contiguous, and aligned, so that the kernels may read it in vectors."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


class _Open(torch.autograd.Function):
    """The parameters of a pass. Its backward is the last: each row's depends on it, by the token."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, gains: Tensor | None, biases: Tensor | None, work: _Work) -> Tensor:
        ctx.work = work
        ctx.set_materialize_grads(False)
        return matrix.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> tuple[Tensor | None, ...]:
        return *ctx.work.gradients_of_parameters(), None


class _Row(torch.autograd.Function):
    """The mixture after layer `row`. The token makes the backward passes of the rows follow each other."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, output: Tensor, work: _Work, row: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(output)
        ctx.work, ctx.row = work, row
        ctx.set_materialize_grads(False)
        return work.mix(row, output), token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (output,) = ctx.saved_tensors
        gradient = torch.zeros_like(output) if gradients[0] is None else gradients[0]
        return None, ctx.work.gather(ctx.row, output, gradient), None, None
