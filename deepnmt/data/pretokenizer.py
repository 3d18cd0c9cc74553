"""Word tokenisation before subwords, by Moses or jieba.

`split` puts spaces between the words of a line with single spaces; `join` undoes it as far as possible.
"""

import re
import warnings
from collections.abc import Callable
from typing import Any

from deepnmt.errors import InputError


class Moses:
    """The Moses tokeniser with its escapes (&quot; etc.), which codes learned from its output expect."""

    def __init__(self, language: str) -> None:
        from sacremoses import MosesDetokenizer, MosesTokenizer

        self._tokenizer: Any = MosesTokenizer(lang=language)
        self._detokenizer: Any = MosesDetokenizer(lang=language)

    def split(self, text: str) -> str:
        return " ".join(self._tokenizer.tokenize(text))

    def join(self, text: str) -> str:
        return str(self._detokenizer.detokenize(text.split(" "))) if text else ""


class MosesOfWmt19(Moses):
    """The variant of fairseq's WMT19 models: normalised punctuation, no control characters, dashes split off."""

    def __init__(self, language: str) -> None:
        from sacremoses import MosesPunctNormalizer

        super().__init__(language)
        self._normalizer: Any = MosesPunctNormalizer(
            lang=language, pre_replace_unicode_punct=True, post_remove_control_chars=True
        )

    def split(self, text: str) -> str:
        return " ".join(self._tokenizer.tokenize(self._normalizer.normalize(text), aggressive_dash_splits=True))


_HAN = "\u2e80-\u303f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_SPACE_BESIDE_HAN = re.compile(f"(?<=[{_HAN}]) | (?=[{_HAN}])")
_IS_HAN = re.compile(f"[{_HAN}]")


class Jieba:
    """Splits Chinese words. Spaces next to a Chinese character are meaningless and dropped; others are kept.

    Boundaries that jieba finds inside foreign text ("GPT|-|4") are ignored, because they could not be undone.
    """

    def __init__(self, language: str) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import jieba
        except ImportError as error:
            raise InputError("the jieba pretokeniser needs jieba: pip install 'deepnmt[zh]'") from error
        jieba.setLogLevel(60)
        self._cut: Callable[[str], list[str]] = jieba.lcut

    def split(self, text: str) -> str:
        parts: list[str] = []
        for word in self._cut(self.join(text)):
            beside_han = bool(parts) and bool(_IS_HAN.match(parts[-1][-1]) or _IS_HAN.match(word))
            parts += [" ", word] if beside_han else [word]
        return "".join(parts)

    def join(self, text: str) -> str:
        return _SPACE_BESIDE_HAN.sub("", text)


PRETOKENIZERS: dict[str, type[Moses | Jieba]] = {"moses": Moses, "jieba": Jieba, "moses-wmt19": MosesOfWmt19}
