"""The best few symbols of each row of logits and the row's normaliser, which take most of a beam search's time."""

import torch
from torch import Tensor

BLOCK = 64
CPU_ROWS = 8


def top_symbols(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and indices (N, count) of the largest entries of each row of logits (N, V), best first.

    The count largest entries lie in the count blocks with the largest maxima, so one reduction over the row and two
    small top-k replace the top-k over V, which is several times slower on every device.
    """
    rows, vocab_size = logits.shape
    blocks = vocab_size // BLOCK
    if blocks < 2 * count:
        top = logits.topk(min(count, vocab_size), dim=1)
        return top.values, top.indices
    blocked = logits[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
    chosen = blocked.amax(2).topk(count, dim=1, sorted=False).indices
    values = blocked.gather(1, chosen[:, :, None].expand(rows, count, BLOCK)).flatten(1)
    # The last, incomplete block is always included.
    top = torch.cat([values, logits[:, blocks * BLOCK :]], dim=1).topk(count, dim=1)
    inside = top.indices // BLOCK
    block = torch.where(inside < count, chosen.gather(1, inside.clamp(max=count - 1)), blocks)
    place = torch.where(inside < count, top.indices % BLOCK, top.indices - count * BLOCK)
    return top.values, block * BLOCK + place


def log_normaliser(logits: Tensor) -> Tensor:
    """log sum exp of each row of logits (N, V), as (N, 1).

    On the CPU it is derived from log_softmax, whose kernel keeps a row in the cache; a few rows at a time, so that its
    output stays there too.
    """
    if logits.device.type != "cpu":
        return logits.logsumexp(1, keepdim=True)
    normaliser, unused = torch.empty_like(logits[:, :1]), torch.empty_like(logits[:CPU_ROWS])
    for rows, result in zip(logits.split(CPU_ROWS), normaliser.split(CPU_ROWS), strict=True):
        log_probs = torch.log_softmax(rows, 1, out=unused[: len(rows)])
        torch.sub(rows[:, :1], log_probs[:, :1], out=result)
    return normaliser
