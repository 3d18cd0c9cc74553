"""Label-smoothed cross-entropy from features, chunk by chunk: the N x V logits never exist at once.

The gradient is computed with the loss, while a chunk's logits are there; `label_smoothed_loss` is the plain twin.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepnmt.model.kernels.padding import GPU_ROWS, widened

# Logits of one chunk, in elements: few enough to need little memory, enough to keep the matrix product busy.
CHUNK_ELEMENTS, CPU_CHUNK_ELEMENTS = 2**27, 2**21
CHUNK_ROWS = 128  # a chunk is a multiple of this
# Logits that a CPU takes the softmax of at once, so that they stay in its cache.
BLOCK_ELEMENTS = 2**18
# Probabilities underflow in fp16: gradients are multiplied by this before the products, and divided by it after them.
FP16_LIFT = 256.0
NO_PADDING = -1  # the id of no symbol


def label_smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float, pad_id: int) -> tuple[Tensor, Tensor]:
    """The sum over real targets of (1 - eps) * -log p_y + eps / V * sum_v -log p_v, and the sum of -log p_y (nats)."""
    negative = -logits.log_softmax(-1)[targets != pad_id]
    nll = negative.gather(-1, targets[targets != pad_id].unsqueeze(-1)).sum()
    loss = (1 - smoothing) * nll + smoothing * negative.mean(-1).sum()
    return loss, nll


def sampled_loss(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    pad_id: int,
    num_sampled: int,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`chunked_loss` with a sampled softmax: the symbols of the batch's targets and `num_sampled` others.

    The others are drawn evenly from the rest of the vocabulary, and each counts for rest / num_sampled symbols, so the
    normaliser and the mean of label smoothing are unbiased estimates of those over the whole vocabulary. The products
    shrink from V to a few hundred or thousand columns (cf. Jean et al. 2015, https://aclanthology.org/P15-1001/).
    """
    own, columns = targets[targets != pad_id].unique(return_inverse=True)
    is_other = torch.ones(len(weight), dtype=torch.bool, device=weight.device).index_fill_(0, own, False)
    others = is_other.nonzero().squeeze(1)
    sampled = others[torch.randperm(len(others), device=weight.device)[:num_sampled]]
    counts = torch.ones(len(own) + len(sampled), device=weight.device)
    counts[len(own) :] = len(others) / max(len(sampled), 1)
    flat = features.reshape(-1, features.shape[-1])[(targets != pad_id).flatten()]
    chosen = torch.cat([own, sampled])
    bias = None if bias is None else bias[chosen]
    return chunked_loss(flat, weight[chosen], columns, smoothing, NO_PADDING, counts=counts, bias=bias)


def chunked_loss(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    pad_id: int,
    chunk: int | None = None,
    counts: Tensor | None = None,
    bias: Tensor | None = None,
    r_drop: float = 0.0,
    multiple: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`label_smoothed_loss` of `features @ weight.T + bias`: (..., d), (V, d) and (V,); targets (...).

    Matrix products run in autocast's precision, the softmax and the sums in fp32. Only `loss` has a gradient.
    `counts` (V,) makes a column of the softmax count for several symbols. With `r_drop`, rows 2i and 2i + 1 are two
    passes over one target (`_consistency_`). The products are computed with a multiple of `multiple` columns.
    """
    elements = CHUNK_ELEMENTS if weight.is_cuda else CPU_CHUNK_ELEMENTS
    chunk = chunk or max(elements // len(weight) // CHUNK_ROWS, 1) * CHUNK_ROWS
    multiple = multiple or (GPU_ROWS if weight.is_cuda else 1)
    chunk += chunk % 2 if r_drop else 0  # pairs stay together
    flat, targets = features.reshape(-1, features.shape[-1]), targets.reshape(-1)
    if not flat.is_cuda:  # on a GPU the host would have to wait for their number
        real = (targets != pad_id).nonzero().squeeze(1)
        flat, targets = flat.index_select(0, real), targets.index_select(0, real)
    cross_entropy: CrossEntropy = partial(_cross_entropy_, smoothing=smoothing, counts=counts)
    if flat.is_cuda and counts is None:
        from deepnmt.model.kernels.cross_entropy_triton import cross_entropy_

        cross_entropy = partial(cross_entropy_, smoothing=smoothing, pad_id=pad_id)
    if r_drop:
        cross_entropy = partial(_consistency_, cross_entropy=cross_entropy, weight=r_drop, pad_id=pad_id)
    apply: Callable[..., tuple[Tensor, Tensor]] = _ChunkedLoss.apply
    return apply(flat, weight, bias, targets, chunk, multiple, cross_entropy, torch.is_grad_enabled())


# (logits, targets, lift=...) -> the sums of loss and nll; the logits are overwritten by `lift` times the gradient. They
# may be the first columns of wider rows, which then end in zeros.
CrossEntropy = Callable[..., tuple[Tensor, Tensor]]


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
        chunk: int, multiple: int, cross_entropy: CrossEntropy, differentiate: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        dtype = _matmul_dtype(features)
        exact = torch.promote_types(features.dtype, torch.float32)
        wanted = [differentiate and needed for needed in ctx.needs_input_grad[:3]]
        with torch.autocast(features.device.type, enabled=False):
            f, w, size = features.to(dtype), widened(weight.to(dtype), multiple), len(weight)
            b = None if bias is None else widened(bias.to(dtype), multiple)
            loss, nll = (torch.zeros((), dtype=exact, device=f.device) for _ in range(2))
            grad_features = torch.empty_like(f) if wanted[0] else None
            grad_weight = torch.zeros_like(w, dtype=exact) if wanted[1] else None
            grad_bias = torch.zeros_like(b, dtype=exact) if b is not None and wanted[2] else None
            lift = FP16_LIFT if dtype is torch.float16 else 1.0
            for start in range(0, f.shape[0], chunk):
                rows = slice(start, start + chunk)
                logits = f[rows] @ w.T if b is None else torch.addmm(b, f[rows], w.T)
                chunk_loss, chunk_nll = cross_entropy(logits[:, :size], targets[rows], lift=lift)
                loss, nll = loss + chunk_loss, nll + chunk_nll
                if grad_features is not None:
                    grad_features[rows] = (logits @ w) / lift if lift != 1 else logits @ w
                if grad_weight is not None:
                    _add_product_(grad_weight, logits.T, f[rows], 1 / lift)
                if grad_bias is not None:
                    grad_bias += logits.sum(0, dtype=exact) / lift
        if any(wanted):
            grad_weight, grad_bias = (None if g is None else g[:size] for g in (grad_weight, grad_bias))
            ctx.save_for_backward(grad_features, grad_weight, grad_bias)
            ctx.dtypes = (features.dtype, weight.dtype)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        grad_features, grad_weight, grad_bias = ctx.saved_tensors
        features_dtype, weight_dtype = ctx.dtypes
        found = (grad_features, features_dtype), (grad_weight, weight_dtype), (grad_bias, weight_dtype)
        given = (None if gradient is None else (gradient * grad_loss).to(dtype) for gradient, dtype in found)
        return *given, *(None,) * 5


def _add_product_(total: Tensor, left: Tensor, right: Tensor, factor: float) -> None:
    """total += factor * left @ right. A GPU adds in the product's fp32, before anything is rounded."""
    if left.dtype is total.dtype:
        total.addmm_(left, right, alpha=factor)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, alpha=factor, out=total)
    else:
        total += left @ (right * factor if factor != 1 else right)


def _matmul_dtype(features: Tensor) -> torch.dtype:
    device = features.device.type
    if torch.is_autocast_enabled(device) and features.dtype is not torch.float64:
        return torch.get_autocast_dtype(device)
    return features.dtype


def _cross_entropy_(
    logits: Tensor, targets: Tensor, *, smoothing: float, lift: float, counts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`label_smoothed_loss` of real targets; overwrites the logits by `lift` times its gradient.

    With log Z = max x - log max p, -log p_y = log Z - x_y, and the whole loss is eps * (x_y - mean x) more than that.
    The gradient is softmax - (1 - eps) * onehot(y) - eps / V. A column that counts c times has log c added to its
    logit in the softmax, and c times its share of the mean.
    """
    size = logits.shape[-1]
    rows = max(1, BLOCK_ELEMENTS // size)
    exact = logits.new_empty(rows, size, dtype=torch.promote_types(logits.dtype, torch.float32))
    loss = nll = exact.new_zeros(())
    uniform = None if counts is None else counts.to(exact.dtype) / counts.sum()
    lifted = None if counts is None else counts.to(exact.dtype).log()
    for block, y in zip(logits.split(rows), targets.unsqueeze(-1).split(rows), strict=True):
        x = exact[: len(block)].copy_(block)
        x_y, mean = x.gather(-1, y).squeeze(-1), x.mean(-1) if uniform is None else x @ uniform
        top = x.amax(-1) if lifted is None else x.add_(lifted).amax(-1)
        p = torch.softmax(x, -1, out=x)
        block_nll = (top - p.amax(-1).log() - x_y).sum()
        nll, loss = nll + block_nll, loss + block_nll + smoothing * (x_y - mean).sum()
        p.sub_(smoothing / size if uniform is None else smoothing * uniform).scatter_add_(
            -1, y, p.new_full(y.shape, smoothing - 1)
        )
        block.copy_(p.mul_(lift) if lift != 1 else p)
    return loss, nll


def _consistency_(
    logits: Tensor, targets: Tensor, *, cross_entropy: CrossEntropy, weight: float, pad_id: int, lift: float
) -> tuple[Tensor, Tensor]:
    """R-Drop (Liang et al. 2021, https://arxiv.org/abs/2106.14448) of rows in pairs: p and q are two passes over one
    target. Half of the sum of their losses and of `weight` / 2 * (KL(p, q) + KL(q, p)): half of the paper's, so that
    equal passes have the loss of one. The gradient of KL(p, q) is p (log p / q - KL) for p's logits, q - p for q's.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    log_p, log_q = (logits[turn::2].to(exact).log_softmax(-1) for turn in (0, 1))
    p, q, ratio = log_p.exp(), log_q.exp(), log_p - log_q
    kl_p, kl_q = (p * ratio).sum(-1, keepdim=True), -(q * ratio).sum(-1, keepdim=True)
    real = (targets[::2] != pad_id).unsqueeze(-1)
    of_p, of_q = p * (ratio - kl_p) + p - q, q * (-ratio - kl_q) + q - p
    loss, nll = cross_entropy(logits, targets, lift=lift)
    for turn, gradient in enumerate((of_p, of_q)):
        logits[turn::2] = logits[turn::2].to(exact) / 2 + gradient.where(real, 0.0) * (lift * weight / 4)
    return loss / 2 + weight / 4 * (kl_p + kl_q).where(real, 0.0).sum(), nll / 2
