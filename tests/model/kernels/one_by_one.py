"""The plain twin of attention among packed sentences: that of padded ones, one sentence at a time."""

from torch import Tensor

from deepnmt.model.attention import KeysValues, attend_padded
from deepnmt.model.sequences import PackedSequences


def attend_one_by_one(
    query: Tensor, keys: Tensor, values: Tensor, of: PackedSequences, to: PackedSequences, causal: bool = False
) -> Tensor:
    """Positions that see nothing get zero."""
    attended = query * 0
    bounds = (text.offsets.unfold(0, 2, 1).tolist() for text in (of, to))
    for (start, end), (first, last) in zip(*bounds, strict=True):
        if start < end and first < last:
            seen = KeysValues(keys[None, first:last], values[None, first:last])
            attended[start:end] = attend_padded(query[None, start:end], seen, 0.0, causal=causal)[0]
    return attended
