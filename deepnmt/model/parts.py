"""Parts of a model by name: `embeddings`, `encoder`, `encoder.0-11`, `decoder.*.cross_attention`."""

import re
from collections.abc import Collection, Iterable, Iterator

from deepnmt.errors import InputError
from deepnmt.model.transformer import Transformer

EMBEDDINGS = ("source_embedding", "target_embedding")


def names_in(parts: Iterable[str], names: Collection[str], setting: str, kind: str) -> set[str]:
    """Those of the names, all of one kind, that are in one of the parts; refuses a part that has none.

    A part is the beginning of a name without `layers`; `*` stands for any one word of it, 0-11 for these layers.
    """
    found = set()
    for part in parts:
        for one in _expanded(part):
            inside = {name for name in names if _is_in(one, name)}
            if not inside:
                examples = "encoder, decoder.0-2, decoder.*.cross_attention"
                raise InputError(
                    f"{setting} has {part!r}, but the model has no {kind} in {one}; examples of parts: {examples}"
                )
            found |= inside
    return found


def freeze(model: Transformer, parts: Iterable[str]) -> None:
    """Make the parameters of these parts constants. A table that several parts share is in all of them."""
    named = dict(model.named_parameters(remove_duplicate=False))
    for name in names_in(parts, named, "training.freeze", "parameter"):
        named[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in named.values()):
        raise InputError("training.freeze names every part of the model, which leaves nothing to train")


def _expanded(part: str) -> Iterator[str]:
    """`encoder.0-2.attention` -> `encoder.0.attention`, `encoder.1.attention`, ..."""
    found = re.fullmatch(r"(\w+\.(?:layers\.)?)(\d+)-(\d+)(\..+)?", part)
    if found is None or int(found[2]) > int(found[3]):
        yield part
        return
    for number in range(int(found[2]), int(found[3]) + 1):
        yield f"{found[1]}{number}{found[4] or ''}"


def _is_in(part: str, name: str) -> bool:
    wanted, words = (text.replace(".layers.", ".").split(".") for text in (part, name))
    if wanted == ["embeddings"]:
        return words[0] in EMBEDDINGS
    is_same = (want in ("*", word) for want, word in zip(wanted, words, strict=False))
    return len(wanted) <= len(words) and all(is_same)
