import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepnmt.data.learning import learn
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.pretokenizer import PRETOKENIZERS
from deepnmt.data.tokenizer import Preprocessor, Tokenizer
from deepnmt.errors import InputError

SUBWORDS = learn(({"the": 20, "dog": 10, "Hund": 10}, {}), SubwordSettings(vocab_size=(300,)))[0]
chinese = st.text(st.sampled_from("我们喜欢机器翻译。，“”ab1- .％　"), max_size=20)


def test_moses_splits_and_escapes_and_undoes_both() -> None:
    moses = PRETOKENIZERS["moses"]("en")
    text = "He said: \"it's 5 < 6 & [so] on\", didn't he?"
    split = moses.split(text)
    assert split == "He said : &quot; it &apos;s 5 &lt; 6 &amp; &#91; so &#93; on &quot; , didn &apos;t he ?"
    assert moses.join(split) == text


@pytest.mark.parametrize("name", ["none", *PRETOKENIZERS])
@given(text=st.text() | chinese | st.text(st.sampled_from("the dog.,'\"&;|[]<>!? -@")))
def test_decoding_what_was_encoded_gives_the_normalised_text(name: str, text: str) -> None:
    pytest.importorskip("jieba")
    tokenizer = Tokenizer(SUBWORDS, Preprocessor("zh" if name == "jieba" else "en", pretokenizer=name))
    assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalise(text)


@pytest.mark.parametrize(
    "text", ['The "big" dog; it\'s here (really).', "Preis: 3,50 € & mehr?", "l'été d'Anne", "a|b <tag> [x] &amp; y"]
)
def test_moses_gives_ordinary_text_back(text: str) -> None:
    language = "fr" if "été" in text else "en"
    tokenizer = Tokenizer(SUBWORDS, Preprocessor(language, pretokenizer="moses"))
    assert tokenizer.decode(tokenizer.encode(text)).replace(" ", "") == text.replace(" ", "")


def test_jieba_finds_words_and_gives_the_text_back() -> None:
    pytest.importorskip("jieba")
    jieba = PRETOKENIZERS["jieba"]("zh")
    text = "我们喜欢GPT-4机器翻译，really good。"
    split = jieba.split(text)
    assert split.split(" ")[:2] == ["我们", "喜欢"]
    assert "GPT-4" in split.split(" ")
    assert jieba.join(split) == text


@given(text=chinese)
def test_jieba_only_drops_spaces_beside_chinese(text: str) -> None:
    pytest.importorskip("jieba")
    jieba = PRETOKENIZERS["jieba"]("zh")
    text = " ".join(text.split())
    joined = jieba.join(text)
    assert joined.replace(" ", "") == text.replace(" ", "")
    assert jieba.join(jieba.split(text)) == joined == jieba.join(joined)


def test_an_unknown_pretokeniser_is_refused() -> None:
    with pytest.raises(InputError, match="pretokenizer = 'mecab' is unknown; choose from none, moses, jieba"):
        Preprocessor("ja", pretokenizer="mecab")
