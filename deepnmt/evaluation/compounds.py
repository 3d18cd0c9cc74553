"""Hyphenated compounds split the way the published WMT14 English-German figures split them."""

import re

# On bytes, because the scripts behind those figures run Perl on bytes. Matches do not overlap: of `x-o-y` only the
# first hyphen is split, but of `x-ö-y` both, because each of the two bytes of ö serves one match.
_COMPOUND = re.compile(rb"(\S)-(\S)")


def split_compounds(line: str) -> str:
    """`rich-text format` -> `rich ##AT##-##AT## text format`, as tensor2tensor's get_ende_bleu.sh does."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()
