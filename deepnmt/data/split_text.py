"""Recognises text that other tools have already split into subwords or tokens; `prepare` takes it for raw text."""

import re
from collections.abc import Iterable, Iterator, Sequence

from deepnmt.data.parallel import RawChunk
from deepnmt.languages import base_language
from deepnmt.progress import say

SAMPLED_LINES = 2000  # of the first chunk of each file
LEAST_LINES = 10  # with the sign; a few may be a coincidence
_TOKENISED = "looks tokenised", "detokenise it first: sacremoses -l {language} detokenize"
_JOINED_WORDS = "'s/(?<=[^ -~]) +(?=.)| +(?=[^ -~])//g'"  # no spaces beside characters that are not ASCII
# The sign, the share of lines that has it in split text and not in raw text, the finding and its remedy.
SIGNS = (
    (r"[^\s@]@@(?: |$)", 0.05, "looks split by subword-nmt", "join its subwords first: sed -E 's/@@ //g; s/@@$//'"),
    (r"(?:^| )▁\w", 0.2, "looks split by SentencePiece", "join its subwords first: sed 's/ //g; s/▁/ /g; s/^ //'"),
    (r"￭", 0.05, "looks tokenised for OpenNMT", "join its tokens first: sed 's/ ￭//g; s/￭ //g'"),
    (r"(?:^| )(?:&quot;|&apos;\w{0,2}|@-@)(?: |$)|\w&apos; \w", 0.05, *_TOKENISED),
    (r"\w \.$", 0.3, *_TOKENISED),
    (r"\w [。！？]$", 0.3, "looks split into words", f"join them first: perl -CSD -pe {_JOINED_WORDS}"),
)


def warn_of_split_text(chunks: Iterable[RawChunk], languages: Sequence[str]) -> Iterator[RawChunk]:
    """The chunks; says so if the first one of a file is already split on a side, with the remedy."""
    for chunk in chunks:
        if chunk.first_line == 1:
            stride = -(-len(chunk) // SAMPLED_LINES)
            pairs = [columns for number, columns in chunk.numbered() if number % stride == 0 and len(columns) == 2]
            for side, language in enumerate(languages):
                found = split_sign([columns[side].decode("utf-8", "replace").rstrip() for columns in pairs])
                if found:
                    name = str(chunk.file.paths[side]) if chunk.file.target else f"column {side + 1} of {chunk.file}"
                    say(f"{name} {found.format(language=base_language(language))}")
        yield chunk


def split_sign(lines: Sequence[str]) -> str | None:
    """A sentence about lines that are already split, without its subject; None for raw text."""
    for sign, least, finding, remedy in SIGNS:
        count = sum(re.search(sign, line) is not None for line in lines)
        if count >= max(LEAST_LINES, least * len(lines)):
            return f"{finding} ({count:,} of {len(lines):,} lines), and the model would write such text; {remedy}"
    return None
