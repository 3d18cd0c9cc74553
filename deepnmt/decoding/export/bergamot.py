"""The binary format of Bergamot, the Marian for web pages, with matrices in 8 bits."""

import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

BINARY = "model.intgemm8.bin"
VERSION, ALIGNMENT = 1, 256
FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101
INNER, OUTER = 64, 8  # the sides of an 8-bit matrix are multiples of these
BERGAMOT = {
    "beam-size": 1,
    "normalize": 1.0,
    "word-penalty": 0,
    "gemm-precision": "int8shiftAll",
    "max-length-break": 128,
    "max-length-factor": 2.0,
    "mini-batch-words": 1024,
    "workspace": 128,
    "cpu-threads": 0,
    "alignment": "soft",
    "skip-cost": True,
    "quiet": True,
    "quiet-translation": True,
}

Item = tuple[int, tuple[int, ...], bytes]  # type, shape and content


def quantised(name: str, array: np.ndarray) -> Item:
    """Matrices in 8 bits, transposed unless they are tables of embeddings, followed by their scale."""
    if array.dtype == np.int8:
        return INT8, array.shape, array.tobytes()
    if not re.search(r"_W[qkvo12]?$|Wemb$", name):
        return FLOAT32, array.shape, array.tobytes()
    scale = np.float32(127 / (np.abs(array).max() or 1))
    rounded = np.rint(array * scale).astype(np.int8)
    return INTGEMM8, array.shape, (rounded if name.endswith("Wemb") else rounded.T).tobytes() + scale.tobytes()


def write_binary(path: Path, items: Mapping[str, Item]) -> None:
    """Little-endian: a version, the number of items, their headers, names, shapes and contents; all aligned."""
    contents = [content + bytes(-len(content) % ALIGNMENT) for _, _, content in items.values()]
    with path.open("wb") as file:
        file.write(struct.pack("<QQ", VERSION, len(items)))
        for (name, (kind, shape, _)), content in zip(items.items(), contents, strict=True):
            file.write(struct.pack("<QQQQ", len(name) + 1, kind, len(shape), len(content)))
        file.write(b"".join(name.encode("ascii") + b"\0" for name in items))
        file.write(b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, shape, _ in items.values()))
        padding = -(file.tell() + 8) % ALIGNMENT
        file.write(struct.pack("<Q", padding) + bytes(padding))
        for content in contents:
            file.write(content)
