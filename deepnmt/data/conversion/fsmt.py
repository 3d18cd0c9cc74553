"""The text of FSMT, fairseq's WMT19 models: Moses with normalised punctuation, BPE, one vocabulary per side.

FSMT marks a symbol that ends a word with </w>; subword-nmt, which we follow, marks all others with @@.
"""

from pathlib import Path

from deepnmt.data.conversion.text import (
    ForeignText,
    chosen_languages,
    decoding_defaults,
    read_numbered,
    read_optional,
)
from deepnmt.data.subword_nmt import SEPARATOR, Codes, SubwordNmt
from deepnmt.data.tokenizer import AS_IT_IS, Preprocessor, Tokenizer, TokenizerPair
from deepnmt.text import read_lines

_END = "</w>"


def read(folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    config = read_optional(folder / "config.json") | read_optional(folder / "tokenizer_config.json")
    languages = chosen_languages(folder, config.get("langs") or ["", ""], source_lang, target_lang)
    merges = [line for line in read_lines(folder / "merges.txt") if not line.startswith("#version")]
    codes = Codes(["#version: 0.2", *(" ".join(line.split()[:2]) for line in merges)], str(folder / "merges.txt"))
    lowercase = bool(config.get("do_lower_case", False))
    sides = []
    for side, language in zip(("src", "tgt"), languages, strict=True):
        symbols = [
            symbol.removesuffix(_END) if symbol.endswith(_END) else symbol + SEPARATOR
            for symbol in read_numbered(folder / f"vocab-{side}.json")
        ]
        preprocessor = Preprocessor(language, pretokenizer="moses-wmt19", lowercase=lowercase, normalization=AS_IT_IS)
        sides.append(Tokenizer(SubwordNmt(codes, symbols), preprocessor))
    return ForeignText(TokenizerPair(*sides), decoding=decoding_defaults(folder))
