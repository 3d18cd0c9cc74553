"""The text of M2M100 and NLLB: one SentencePiece model, and a language tag before source and target.

Both have our special symbols. The tags follow the pieces: __de__ in M2M100, deu_Latn in NLLB.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepnmt.data.conversion.text import ForeignText, decoding_defaults, read_numbered, read_optional, read_pieces
from deepnmt.data.sentence_pieces import ListedPieces
from deepnmt.data.tokenizer import AS_IT_IS, LanguageTags, Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import SPECIAL_PIECES
from deepnmt.errors import InputError
from deepnmt.files import read_json

# In the order of their numbers; a folder need not list them.
M2M100_LANGUAGES = [
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy", "da", "de", "el", "en",
    "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht", "hu", "hy", "id",
    "ig", "ilo", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "lb", "lg", "ln", "lo", "lt", "lv", "mg", "mk",
    "ml", "mn", "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or", "pa", "pl", "ps", "pt", "ro", "ru", "sd", "si",
    "sk", "sl", "so", "sq", "sr", "ss", "su", "sv", "sw", "ta", "th", "tl", "tn", "tr", "uk", "ur", "uz", "vi", "wo",
    "xh", "yi", "yo", "zh", "zu",
]  # fmt: skip
MODEL = "sentencepiece.bpe.model"
MANY = "mul"  # the code of ISO 639-2 for several languages


def read_m2m100(folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    """Pieces are numbered by vocab.json."""
    return _read(folder, read_numbered(folder / "vocab.json"), re.compile(r"__(\w+)__"), source_lang, target_lang)


def read_nllb(folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    """Pieces are numbered by SentencePiece, shifted by one because it has no <pad>."""
    pieces = read_pieces(folder / MODEL)
    if pieces[:3] != ["<unk>", "<s>", "</s>"]:
        raise InputError(f"{folder / MODEL} must begin with <unk> <s> </s>")
    return _read(folder, pieces[3:], re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"), source_lang, target_lang)


def _read(
    folder: Path, pieces: list[str], tag: re.Pattern[str], source_lang: str | None, target_lang: str | None
) -> ForeignText:
    rows = int(read_json(folder / "config.json").get("vocab_size", 0))
    tags = _added(folder, len(SPECIAL_PIECES) + len(pieces), rows)
    languages = {match[1]: name for name in tags if (match := tag.fullmatch(name))}
    if not languages:
        raise InputError(f"{folder} lists no languages in tokenizer.json or tokenizer_config.json")
    subwords, preprocessor = ListedPieces.read(folder / MODEL, pieces), Preprocessor(MANY, normalization=AS_IT_IS)
    source, target = (
        Tokenizer(subwords, preprocessor, tags, LanguageTags(side, languages)) for side in ("source", "target")
    )
    pair = TokenizerPair(source, target)
    if bool(source_lang) != bool(target_lang):
        raise InputError("give both --source-lang and --target-lang, or neither")
    if source_lang:
        pair = pair.for_languages(source_lang, target_lang)
    return ForeignText(pair, decoding=decoding_defaults(folder))


def _added(folder: Path, first: int, rows: int) -> list[str]:
    """The symbols after the pieces, by number; `<extra N>` for a row of the model without a symbol."""
    config = read_optional(folder / "tokenizer_config.json")
    numbers = {
        entry["content"]: entry["id"] for entry in read_optional(folder / "tokenizer.json").get("added_tokens", [])
    }
    numbers |= {entry["content"]: int(number) for number, entry in config.get("added_tokens_decoder", {}).items()}
    numbers |= read_optional(folder / "added_tokens.json")
    numbers = {symbol: number for symbol, number in numbers.items() if number >= first}
    if not numbers:
        numbers = {symbol: first + place for place, symbol in enumerate(_listed(folder, config))}
    by_number = {number: symbol for symbol, number in numbers.items()}
    last = max([rows, *(number + 1 for number in by_number)])
    return [by_number.get(number, f"<extra {number}>") for number in range(first, last)]


def _listed(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The special symbols in the order of their numbers."""
    settings = read_optional(folder / "special_tokens_map.json") | dict(config)
    listed = settings.get("additional_special_tokens") or settings.get("extra_special_tokens") or []
    if not listed and settings.get("language_codes") == "m2m100":
        listed = [f"__{language}__" for language in M2M100_LANGUAGES]
    return [symbol if isinstance(symbol, str) else symbol["content"] for symbol in listed]
