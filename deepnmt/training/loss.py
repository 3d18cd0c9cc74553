"""Label-smoothed cross-entropy from features, chunk by chunk: the N x V logits never exist at once.

The gradient is computed with the loss, while a chunk's logits are there; `label_smoothed_loss` is the plain twin.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Logits of one chunk, in elements: small enough to stay out of the way, large enough to keep the matrix product busy.
CHUNK_ELEMENTS = 2**26
# Probabilities underflow in fp16: their gradient is lifted by this much on the way in and lowered on the way out.
FP16_LIFT = 256.0


def label_smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float, pad_id: int) -> tuple[Tensor, Tensor]:
    """The sum over real targets of (1 - eps) * -log p_y + eps / V * sum_v -log p_v, and the sum of -log p_y (nats)."""
    negative = -logits.log_softmax(-1)[targets != pad_id]
    nll = negative.gather(-1, targets[targets != pad_id].unsqueeze(-1)).sum()
    loss = (1 - smoothing) * nll + smoothing * negative.mean(-1).sum()
    return loss, nll


def chunked_loss(
    features: Tensor, weight: Tensor, targets: Tensor, smoothing: float, pad_id: int, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """`label_smoothed_loss` of `features @ weight.T`; features (..., d), weight (V, d), targets (...).

    Matrix products run in autocast's precision, the softmax and the sums in fp32. Only `loss` has a gradient.
    """
    chunk = chunk or max(128, CHUNK_ELEMENTS // weight.shape[0])
    differentiate = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
    flat = features.reshape(-1, features.shape[-1])
    apply: Callable[..., tuple[Tensor, Tensor]] = _ChunkedLoss.apply
    return apply(flat, weight, targets.reshape(-1), smoothing, pad_id, chunk, differentiate)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        pad_id: int,
        chunk: int,
        differentiate: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = _matmul_dtype(features)
        exact = torch.promote_types(features.dtype, torch.float32)
        with torch.autocast(features.device.type, enabled=False):
            f, w = features.to(dtype), weight.to(dtype)
            loss = nll = torch.zeros((), dtype=exact, device=f.device)
            grad_features = torch.empty_like(f) if differentiate else None
            grad_weight = torch.zeros_like(weight, dtype=exact) if differentiate else None
            lift = FP16_LIFT if dtype is torch.float16 else 1.0
            for start in range(0, f.shape[0], chunk):
                rows = slice(start, start + chunk)
                chunk_loss, chunk_nll, gradient = differentiated(f[rows] @ w.T, targets[rows], smoothing, pad_id, lift)
                loss, nll = loss + chunk_loss, nll + chunk_nll
                if grad_features is not None and grad_weight is not None:
                    grad_features[rows] = (gradient @ w) / lift if lift != 1 else gradient @ w
                    grad_weight += gradient.T @ (f[rows] / lift if lift != 1 else f[rows])
        if differentiate:
            ctx.save_for_backward(grad_features, grad_weight)
            ctx.dtypes = (features.dtype, weight.dtype)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        grad_features, grad_weight = ctx.saved_tensors
        features_dtype, weight_dtype = ctx.dtypes
        return (
            (grad_features * grad_loss).to(features_dtype),
            (grad_weight * grad_loss).to(weight_dtype),
            *(None,) * 5,
        )


def differentiated(
    logits: Tensor, targets: Tensor, smoothing: float, pad_id: int, lift: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of loss and nll, and `lift` times the loss's gradient, in the logits' type; overwrites the logits."""
    if logits.is_cuda:
        from deepnmt.model.kernels.cross_entropy_triton import cross_entropy_

        loss, nll = cross_entropy_(logits, targets, smoothing, pad_id, lift)
        return loss, nll, logits
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probabilities = exact.log_softmax(-1)
    loss, nll = _sums(log_probabilities, targets, smoothing, pad_id)
    gradient = _logits_gradient(log_probabilities, targets, smoothing, pad_id)
    return loss, nll, (gradient * lift).to(logits.dtype)


def _matmul_dtype(features: Tensor) -> torch.dtype:
    device = features.device.type
    if torch.is_autocast_enabled(device) and features.dtype is not torch.float64:
        return torch.get_autocast_dtype(device)
    return features.dtype


def _sums(log_probabilities: Tensor, targets: Tensor, smoothing: float, pad_id: int) -> tuple[Tensor, Tensor]:
    real = targets != pad_id
    nll = -log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1).where(real, 0)
    uniform = -log_probabilities.mean(-1).where(real, 0)
    return ((1 - smoothing) * nll + smoothing * uniform).sum(), nll.sum()


def _logits_gradient(log_probabilities: Tensor, targets: Tensor, smoothing: float, pad_id: int) -> Tensor:
    """softmax - (1 - eps) * onehot(y) - eps / V, zero at padding; overwrites its input."""
    gradient = log_probabilities.exp_().sub_(smoothing / log_probabilities.shape[-1])
    gradient.scatter_add_(-1, targets.unsqueeze(-1), gradient.new_full((len(targets), 1), smoothing - 1))
    return gradient.mul_((targets != pad_id).unsqueeze(-1))
