import pytest
from grammar import count_words, english_german

from deepnmt.data.learning import learn
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair


@pytest.fixture(scope="session")
def tokenizers() -> TokenizerPair:
    """A joint BPE of the tiny grammar."""
    pairs = english_german(300)
    words = (count_words([source for source, _ in pairs]), count_words([target for _, target in pairs]))
    source, target = learn(words, SubwordSettings(vocab_size=(420,), min_frequency=2))
    return TokenizerPair(
        Tokenizer(source, Preprocessor("en"), ["<bt>"]), Tokenizer(target, Preprocessor("de"), ["<bt>"])
    )
