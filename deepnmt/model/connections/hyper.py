"""Hyper-connections: several residual streams, which layers read, write and mix with learned weights."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, StackShape, contribution
from deepnmt.model.kernels.mixture import mix, mix_streams
from deepnmt.model.norms import inverse_rms
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class StreamsConfig(ConnectionConfig):
    streams: int = 4

    def __post_init__(self) -> None:
        check_bounds(self, "connection.streams", least=2)


@dataclass(frozen=True, kw_only=True)
class HyperConfig(StreamsConfig):
    kind = "hyper"
    dynamic: bool = True  # add weights that depend on the streams


@dataclass(frozen=True)
class StreamWeights:
    """The weights with which a layer uses n streams, at each position."""

    read: Tensor  # (..., n): its input x = sum_i read_i H_i
    write: Tensor  # (..., n): what it adds to stream j, write_j v
    carry: Tensor  # (..., n, n): and what stream j becomes otherwise, sum_i carry_ij H_i


class StreamHistory(History):
    """The current streams H_1, ..., H_n."""

    depth = -1  # layers written
    streams: Tensor  # (n, ..., dim)
    given: Tensor  # the input of the layer that writes next
    weights: StreamWeights  # and how it uses the streams


class Streams(Connection):
    """n streams, initially the embedding. Layer l reads x = sum_i read_i H_i, adds v = y - x, and the streams become
    H_j <- sum_i carry_ij H_i + write_j v. The result is their sum."""

    needs_branches = True

    def __init__(self, num_streams: int, shape: StackShape) -> None:
        super().__init__(None, shape)
        self.num_streams, self.num_layers = num_streams, shape.num_layers

    def weights_of(self, layer: int, streams: Tensor) -> StreamWeights:
        """layer: from 0; streams: (n, ..., dim)"""
        raise NotImplementedError

    def static_weights(self, layer: int) -> StreamWeights:
        """The part that does not depend on the position."""
        raise NotImplementedError

    def begin(self) -> StreamHistory:
        return StreamHistory()

    def write(self, history: StreamHistory, output: Tensor) -> None:
        history.depth += 1
        if history.depth == 0:
            history.streams = output.expand(self.num_streams, *output.shape)
        else:
            weights = torch.cat([history.weights.carry, history.weights.write.unsqueeze(-2)], -2)
            history.streams = mix_streams(history.streams, contribution(output, history.given), weights)

    def read(self, history: StreamHistory) -> Tensor:
        if history.depth == self.num_layers:
            return mix(history.streams.unbind(), history.streams.new_ones(self.num_streams, 1).float())
        history.weights = self.weights_of(history.depth, history.streams)
        history.given = mix_streams(history.streams, None, history.weights.read.unsqueeze(-1))[0]
        return history.given

    def matrix(self) -> Tensor:
        """The weight of each branch (not of each output) in each input and in the result, without the dynamic part."""
        count = self.num_layers + 1
        rows, streams = torch.zeros(count, count), torch.zeros(self.num_streams, count)
        streams[:, 0] = 1
        for layer in range(self.num_layers):
            weights = self.static_weights(layer)
            rows[layer] = weights.read @ streams
            streams = weights.carry.T @ streams
            streams[:, layer + 1] += weights.write
        rows[-1] = streams.sum(0)
        return rows


class Hyper(Streams):
    """read = A_m + s tanh(rms(H) W_m), write = B + s' tanh(rms(H) W_b), carry = A_r + s tanh(rms(H) W_r).

    Zhu et al. 2025, https://arxiv.org/abs/2409.19606. Initialised as the residual stack: A_m = e_{l mod n}, A_r = I, B
    = 1, W = 0; s = s' = .01.
    """

    Config = HyperConfig

    def __init__(self, config: HyperConfig, shape: StackShape) -> None:
        super().__init__(config.streams, shape)
        n, layers = config.streams, range(shape.num_layers)
        read = F.one_hot(torch.tensor([layer % n for layer in layers]), n).float()
        # Columns: read, write, and carry into each stream. Rows: the streams.
        start = torch.cat([read.unsqueeze(2), torch.ones(len(layers), n, 1), torch.eye(n).expand(len(layers), n, n)], 2)
        self.weight = nn.Parameter(start)  # (layers, n, 2 + n)
        self.is_dynamic = config.dynamic
        if config.dynamic:
            self.projection = nn.Parameter(torch.zeros(len(layers), 2 + n, shape.dim))
            self.scale = nn.Parameter(torch.full((len(layers), 2), 0.01))  # of read and carry, and of write

    def weights_of(self, layer: int, streams: Tensor) -> StreamWeights:
        if not self.is_dynamic:
            shape = *streams[0].shape[:-1], *self.weight.shape[1:]
            return _parted(self.weight[layer].expand(shape))
        found = F.linear(streams, self.projection[layer]) * inverse_rms(streams)
        dynamic = found.movedim(0, -2).tanh()  # (..., n, 2 + n)
        others, write = self.scale[layer].to(dynamic.dtype).unbind()
        scale = torch.stack([others, write, *[others] * self.num_streams])
        return _parted(self.weight[layer].to(dynamic.dtype) + scale * dynamic)

    def static_weights(self, layer: int) -> StreamWeights:
        return _parted(self.weight[layer].detach().float().cpu())


def _parted(weights: Tensor) -> StreamWeights:
    return StreamWeights(weights[..., 0], weights[..., 1], weights[..., 2:])
