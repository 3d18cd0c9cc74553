"""BLEU as computed by multi-bleu.perl, on text tokenised with the Moses rules.

Separate from `metrics` because it imports sacreBLEU and sacremoses, which load slowly.
"""

import re
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import sacrebleu
from sacrebleu.metrics.bleu import BLEU, BLEUSignature
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from deepnmt import __version__

# On bytes, because the scripts behind the published figures run Perl on bytes. Matches do not overlap: of `x-o-y` only
# the first hyphen is split, but of `x-ö-y` both, because each of the two bytes of ö serves one match.
_COMPOUND = re.compile(rb"(\S)-(\S)")


def split_compounds(line: str) -> str:
    """`rich-text format` -> `rich ##AT##-##AT## text format`, as tensor2tensor's get_ende_bleu.sh does."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()


class MosesWords:
    """Raw text to Moses tokens joined by spaces; `compounds` adds the steps of the published English-German figures."""

    def __init__(self, language: str, compounds: bool = False) -> None:
        self.language, self.compounds = language, compounds
        self.known = language in NonbreakingPrefixes().available_langs
        self._tokenizer = MosesTokenizer(lang=language)
        self._normalizer = MosesPunctNormalizer(lang=language)
        self.tokenize = lru_cache(maxsize=2**16)(self._tokenize)

    @property
    def signature(self) -> str:
        prefixes = "" if self.known else "[prefixes-en]"
        return f"moses-{self.language}{prefixes}" + ("+compound-split" if self.compounds else "")

    def _tokenize(self, line: str) -> str:
        if self.compounds:
            line = self._normalizer.replace_unicode_punct(line)
        # tokenizer.perl escapes & < > | [ ] and quotes, one to one: that cannot change which n-grams match.
        tokens: str = self._tokenizer.tokenize(line, return_str=True, escape=False)
        return split_compounds(tokens) if self.compounds else tokens


moses_words = cache(MosesWords)  # shared between variants of BLEU


class MultiBLEUSignature(BLEUSignature):
    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        words: MosesWords = args["words"]
        smooth = self.info.pop("smooth")
        for absent in ("eff", "tok"):
            self.info.pop(absent)
        self.info |= {
            "norm": "unicode-punct" if words.compounds else "no",
            "tok": words.signature,
            "escape": "no",
            "smooth": smooth,
            "sacremoses": version("sacremoses"),
            "sacrebleu": sacrebleu.__version__,
            "version": f"deepnmt-{__version__}",
        }


class MultiBLEU(BLEU):
    """multi-bleu.perl: no smoothing; the closest reference length, the shorter of two as close; tokens lowercased."""

    _SIGNATURE_TYPE = MultiBLEUSignature

    def __init__(self, words: MosesWords, lowercase: bool = False) -> None:
        super().__init__(lowercase=lowercase, tokenize="none", smooth_method="none", force=True)
        self.words = words

    def _preprocess_segment(self, sent: str) -> str:
        tokens = self.words.tokenize(sent)
        return tokens.lower() if self.lowercase else tokens
