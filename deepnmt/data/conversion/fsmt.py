"""The text of FSMT, fairseq's models of WMT19: Moses with its normalised punctuation, BPE, a vocabulary for each side.

A symbol that ends a word is written with </w> there; in subword-nmt's way, which is ours, one that does not has @@.
"""

from pathlib import Path

from deepnmt.data.conversion.text import ForeignText, decoding_defaults, read_optional, read_vocabulary
from deepnmt.data.subword_nmt import SEPARATOR, Codes, SubwordNmt
from deepnmt.data.tokenizer import AS_IT_IS, Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import SPECIAL_PIECES
from deepnmt.errors import InputError
from deepnmt.text import read_lines

_END = "</w>"


def read(folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    told = read_optional(folder / "config.json") | read_optional(folder / "tokenizer_config.json")
    languages = told.get("langs") or ["", ""]
    languages = [source_lang or languages[0], target_lang or languages[1]]
    if not all(languages):
        raise InputError(f"{folder} does not say its languages: give --source-lang and --target-lang")
    merges = [line for line in read_lines(folder / "merges.txt") if not line.startswith("#version")]
    codes = Codes(["#version: 0.2", *(" ".join(line.split()[:2]) for line in merges)], str(folder / "merges.txt"))
    sides = []
    for side, language in zip(("src", "tgt"), languages, strict=True):
        subwords = SubwordNmt(codes, _symbols(folder / f"vocab-{side}.json"))
        lowercase = bool(told.get("do_lower_case", False))
        preprocessor = Preprocessor(language, pretokenizer="moses-wmt19", lowercase=lowercase, normalization=AS_IT_IS)
        sides.append(Tokenizer(subwords, preprocessor))
    return ForeignText(TokenizerPair(*sides), decoding=decoding_defaults(folder))


def _symbols(path: Path) -> list[str]:
    vocabulary = read_vocabulary(path)
    listed = sorted(vocabulary, key=vocabulary.__getitem__)
    if tuple(listed[:4]) != SPECIAL_PIECES or [vocabulary[symbol] for symbol in listed] != [*range(len(listed))]:
        raise InputError(f"{path} must number its symbols from 0, beginning with <s> <pad> </s> <unk>")
    return [symbol.removesuffix(_END) if symbol.endswith(_END) else symbol + SEPARATOR for symbol in listed[4:]]
