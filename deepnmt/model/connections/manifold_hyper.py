"""Manifold-constrained hyper-connections: the streams are mixed by doubly stochastic matrices, so none can explode."""

import math

import torch
from torch import Tensor, nn

from deepnmt.model.connections.connection import StackShape
from deepnmt.model.connections.hyper import Streams, StreamsConfig, StreamWeights
from deepnmt.model.norms import inverse_rms

ROUNDS = 20
FAR = -8.0  # the logit of another stream at the start: its share is about exp(FAR)


class ManifoldHyperConfig(StreamsConfig):
    kind = "manifold-hyper"


class ManifoldHyper(Streams):
    """read = sigmoid, write = 2 sigmoid, carry = Sinkhorn of exp, of logits a (rms(H) P) + b, where rms is of all
    streams of a position as one vector, and a = .01 is learned.

    Xie et al. 2025, https://arxiv.org/abs/2512.24880. Initialised close to the residual stack: P = 0, and b such that
    a layer reads the mean of the streams and adds its contribution to each, and each stream carries itself.
    """

    Config = ManifoldHyperConfig

    def __init__(self, config: ManifoldHyperConfig, shape: StackShape) -> None:
        super().__init__(config.streams, shape)
        n, layers = config.streams, shape.num_layers
        carry = torch.full((n, n), FAR).fill_diagonal_(0.0)
        start = torch.cat([torch.full((n,), -math.log(n - 1)), torch.zeros(n), carry.flatten()])
        self.bias = nn.Parameter(start.repeat(layers, 1))  # (layers, 2n + n^2)
        self.projection = nn.Parameter(torch.zeros(layers, n, 2 * n + n * n, shape.dim))
        self.scale = nn.Parameter(torch.full((layers, 3), 0.01))  # of read, write and carry

    def weights_of(self, layer: int, streams: Tensor) -> StreamWeights:
        n = self.num_streams
        products = torch.bmm(streams.flatten(1, -2), self.projection[layer].mT)  # each stream's share
        mean_square = inverse_rms(streams).pow(-2).mean(0)
        dynamic = products.sum(0).unflatten(0, streams.shape[1:-1]) * mean_square.rsqrt()
        read, write, carry = self.scale[layer].to(dynamic.dtype).unbind()
        scale = torch.cat([read.expand(n), write.expand(n), carry.expand(n * n)])
        return self._parted(self.bias[layer].to(dynamic.dtype) + scale * dynamic)

    def static_weights(self, layer: int) -> StreamWeights:
        return self._parted(self.bias[layer].detach().float().cpu())

    def _parted(self, logits: Tensor) -> StreamWeights:
        n = self.num_streams
        read, write, carry = logits.split([n, n, n * n], -1)
        return StreamWeights(read.sigmoid(), 2 * write.sigmoid(), sinkhorn(carry.unflatten(-1, (n, n))).mT)


def sinkhorn(logits: Tensor) -> Tensor:
    """exp(logits) with columns and rows normalised alternately, computed in logarithms. (..., n, n)"""
    if logits.is_cuda:
        from deepnmt.model.kernels.sinkhorn_triton import fused_sinkhorn

        return fused_sinkhorn(logits, ROUNDS)
    for _ in range(ROUNDS):
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()
