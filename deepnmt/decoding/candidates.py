"""The best few symbols of each row of logits and the row's normaliser, which take most of a beam search's time."""

import math

import torch
from torch import Tensor

BLOCK = 64
CPU_ROWS = 16
CPU_VECTOR = 64  # numbers; a multiple of what any CPU computes at once
CPU_GRAIN = 32_768  # numbers; torch gives a thread no fewer, and divides more evenly among its threads
LOG2_E = math.log2(math.e)


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

    On the CPU by powers of two, which take half of the time of powers of e, and a few rows at a time, which stay in the
    cache. A score must not depend on the place of its row, but torch computes what fills no vector in another way, as
    it does the sum of a single row. So rows are padded, and there are enough of them for all threads to get equal parts
    of whole vectors.
    """
    if logits.device.type != "cpu":
        return logits.logsumexp(1, keepdim=True)
    (count, size), threads = logits.shape, torch.get_num_threads()
    width = math.ceil(size / (threads * CPU_VECTOR)) * threads * CPU_VECTOR
    fewest = 1 if threads == 1 else max(2, (threads - 1) * CPU_GRAIN // width + 1)
    most = max(min(CPU_ROWS, count), fewest)
    exponents = logits.new_full((most, width), -torch.inf)
    powers, shift = torch.empty_like(exponents), logits.amax(1, keepdim=True).mul_(-LOG2_E)
    sums = torch.empty_like(shift)
    for rows, by, result in zip(*(part.split(most) for part in (logits, shift, sums)), strict=True):
        computed = max(len(rows), fewest)
        torch.add(by, rows, alpha=LOG2_E, out=exponents[: len(rows), :size])
        torch.exp2(exponents[:computed], out=powers[:computed])
        result.copy_(powers[:computed].sum(1, keepdim=True)[: len(rows)])
    return sums.log2_().sub_(shift).div_(LOG2_E)
