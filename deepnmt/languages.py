"""Language codes and the English names of languages."""

from collections.abc import Iterable

NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "da": "Danish",
    "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian",
    "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "is": "Icelandic",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "ms": "Malay",
    "nb": "Norwegian Bokmål", "nl": "Dutch", "nn": "Norwegian Nynorsk", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian",
    "sv": "Swedish", "ta": "Tamil", "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian",
    "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip


# Codes of three letters, as NLLB and OPUS-MT have them, of the languages above.
TWO_LETTERS = {
    "arb": "ar", "ara": "ar", "bul": "bg", "ben": "bn", "cat": "ca", "ces": "cs", "dan": "da", "deu": "de", "ell": "el",
    "eng": "en", "epo": "eo", "spa": "es", "est": "et", "eus": "eu", "fas": "fa", "pes": "fa", "fin": "fi", "fra": "fr",
    "gle": "ga", "glg": "gl", "heb": "he", "hin": "hi", "hrv": "hr", "hun": "hu", "ind": "id", "isl": "is", "ita": "it",
    "jpn": "ja", "kor": "ko", "lit": "lt", "lav": "lv", "lvs": "lv", "msa": "ms", "zsm": "ms", "nob": "nb", "nld": "nl",
    "nno": "nn", "pol": "pl", "por": "pt", "ron": "ro", "rus": "ru", "slk": "sk", "slv": "sl", "als": "sq", "sqi": "sq",
    "srp": "sr", "swe": "sv", "tam": "ta", "tha": "th", "tgl": "tl", "tur": "tr", "ukr": "uk", "urd": "ur", "vie": "vi",
    "zho": "zh", "cmn": "zh",
}  # fmt: skip


SCRIPTS = {
    "Arab": "Arabic", "Cyrl": "Cyrillic", "Deva": "Devanagari", "Hans": "Simplified", "Hant": "Traditional",
    "Latn": "Latin",
}  # fmt: skip


def base_language(code: str) -> str:
    """de for de, de-AT, de_CH, DE, deu_Latn and German."""
    base = code.replace("_", "-").partition("-")[0].lower()
    return TWO_LETTERS.get(base) or code_named(base) or base


def code_named(name: str) -> str | None:
    """de for German, in any case; None for text that is not the name of a language."""
    return next((code for code, known in NAMES.items() if known.lower() == name.lower()), None)


def language_name(code: str) -> str:
    """German for de and de-AT; an unknown code stays as it is."""
    return NAMES.get(base_language(code), code)


def language_names(codes: Iterable[str]) -> dict[str, str]:
    """A different name for each code: those of one language say the script, or else the code, too."""
    names = {code: language_name(code) for code in codes}
    same: dict[str, list[str]] = {}
    for code, name in names.items():
        same.setdefault(name, []).append(code)
    for name, group in same.items():
        scripts = [SCRIPTS.get(code.replace("_", "-").split("-")[-1].title()) for code in group]
        are_different = None not in scripts and len({*scripts}) == len(group)
        if len(group) > 1:
            names |= {code: f"{name} ({scripts[i] if are_different else code})" for i, code in enumerate(group)}
    return names
