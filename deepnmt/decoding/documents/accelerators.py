"""Keyboard accelerators in the labels of an interface: the & of "E&xit", the _ of "_Open"."""

import re

from deepnmt.decoding.placeholders import PLACEHOLDER
from deepnmt.decoding.splitting import UNSPACED_LANGUAGES
from deepnmt.languages import base_language

MAX_LABEL = 60  # characters; what is longer is no label
# Before a word; inside one only as in E&xit and Cu_t, not as in AT&T, file_name or &amp;.
_MARKER = re.compile(
    r"(?<![^\s(\[])[&_~](?=[^\W\d_])(?!\w+;)|(?<=[^\W\d_])&(?=[a-z])(?!\w+;)|(?<=^[A-Z])_|(?<=^[A-Z][a-z])_"
)
_END = re.compile(r"[\s.…:]*$")


def without_accelerator(label: str) -> tuple[str, str]:
    """The label as a reader sees it, and the marker with its letter, or nothing."""
    found = list(_MARKER.finditer(label)) if len(label) <= MAX_LABEL and "<" not in label else []
    if len(found) != 1 or label.count(found[0].group()) != 1 or found[0].end() == len(label):
        return label, ""
    at = found[0].start()
    return label[:at] + label[at + 1 :], label[at : at + 2]


def with_accelerator(label: str, accelerator: str, language: str) -> str:
    """Before the same letter, at the start of a word if possible, or else the first letter; (&F) in Chinese."""
    if not accelerator or not label:
        return label
    marker, letter = accelerator[0], re.escape(accelerator[1])
    taken = {i for match in PLACEHOLDER.finditer(label) for i in range(*match.span())}

    def first(pattern: str) -> int | None:
        found = (match.start() for match in re.finditer(pattern, label, re.IGNORECASE))
        return next((place for place in found if place not in taken), None)

    place = first(rf"(?<!\w){letter}")
    place = first(letter) if place is None else place
    if base_language(language) in UNSPACED_LANGUAGES and place is None:
        end = _END.search(label)
        at = end.start() if end else len(label)
        return f"{label[:at]}({accelerator.upper()}){label[at:]}"
    place = first(r"[^\W\d_]") if place is None else place
    return label if place is None else label[:place] + marker + label[place:]
