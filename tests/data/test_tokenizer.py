import io
import tracemalloc
import unicodedata
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from grammar import count_words, english_german
from hypothesis import example, given
from hypothesis import strategies as st

from deepnmt.data import learning, subwords
from deepnmt.data.learning import cut, learn, piece_counts
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.errors import InputError

SENTENCES = [line for pair in english_german(300) for line in pair]
WORDS = count_words(SENTENCES)
MODELS = {kind: learn((WORDS, {}), SubwordSettings(subwords=kind, vocab_size=(420,)))[0] for kind in ("bpe", "unigram")}

nasty = (
    st.text()
    | st.text(st.sampled_from("ab ▁⁇\t\u00a0\u3000\u0301é<>/s@\x00\n\x85\ufeff\u200b\ufffd😀漢ﬁ½"))
    | (
        st.lists(
            st.sampled_from(["<s>", "</s>", "<unk>", "<pad>", "<0x41>", "<bt>", "the dog", "Hund", " ", "@@"])
        ).map("".join)
    )
)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("normalization", ["nfc", "nfkc", "none"])
@given(text=nasty)
@example(text="<bt> the dog")
@example(text="<bt>")
@example(text="a\ud800b")
def test_decoding_what_was_encoded_gives_the_normalised_text(kind: str, normalization: str, text: str) -> None:
    tokenizer = Tokenizer(MODELS[kind], Preprocessor("en", normalization=normalization), ["<bt>"])
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.normalise(text)
    assert not {tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id} & set(ids)


@given(text=nasty)
def test_normalising_changes_spaces_and_canonical_forms_only(text: str) -> None:
    normalised = Tokenizer(MODELS["bpe"], Preprocessor("en")).normalise(text)
    assert normalised == " ".join(unicodedata.normalize("NFC", text.replace("▁", " ")).split())


def test_users_text_is_not_rewritten() -> None:
    tokenizer = Tokenizer(MODELS["bpe"], Preprocessor("zh"))
    for text in ("１２３，ｆｕｌｌ　ｗｉｄｔｈ", "½ … ﬁ ™ “quoted” – l’été", "Straße İstanbul ΑΒΓ"):
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("\u3000", " ")


@given(text=st.text(st.characters(codec="utf-8")))
def test_lowercase_is_the_text_lowered(text: str) -> None:
    tokenizer = Tokenizer(MODELS["bpe"], Preprocessor("en", lowercase=True, normalization="none"))
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.lower().replace("▁", " ").split())


def test_special_ids_are_where_everyone_expects_them(tokenizers: TokenizerPair) -> None:
    tokenizer = tokenizers.source
    assert [tokenizer.piece(i) for i in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.vocab_size == len(tokenizer.pieces) == len(set(tokenizer.pieces))


def test_decoding_stops_at_the_end_and_skips_padding(tokenizers: TokenizerPair) -> None:
    ids = tokenizers.source.encode("the dog")
    padded = np.array([0, *ids, 1, 2, *ids])
    assert tokenizers.source.decode(padded) == "the dog"


def test_no_output_has_a_line_break(tokenizers: TokenizerPair) -> None:
    newline = tokenizers.source.pieces.index("<0x0A>")
    ids = tokenizers.source.encode("dog")
    assert tokenizers.source.decode([*ids, newline, *ids]) == "dog dog"


def test_a_tag_is_one_symbol_before_the_sentence(tokenizers: TokenizerPair) -> None:
    tokenizer = tokenizers.source
    plain = tokenizer.encode("the dog")
    assert tokenizer.encode("<bt> the dog") == [tokenizer.vocab_size - 1, *plain]
    assert tokenizer.vocab_size - 1 not in tokenizer.encode("<bt>the dog") + tokenizer.encode("the <bt> dog")


@pytest.mark.parametrize("kind", MODELS)
def test_words_encoded_one_by_one_are_the_line_encoded_by_sentencepiece(kind: str) -> None:
    pieces = MODELS[kind]
    assert isinstance(pieces, SentencePieces)
    reference = sentencepiece.SentencePieceProcessor(model_proto=pieces.model)
    lines = [*SENTENCES, "Größenwahn 漢字 x ⁇", ""]
    encoded = [[pieces.pieces[i] for i in array("I", ids)] for ids in pieces.encode_lines(lines)]
    assert encoded == reference.encode(lines, out_type=str)


def test_encoding_does_not_depend_on_what_was_encoded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = MODELS["bpe"]
    assert isinstance(pieces, SentencePieces)
    expected = [SentencePieces(pieces.model).encode_lines([line])[0] for line in SENTENCES[:50]]
    monkeypatch.setattr(subwords, "MAX_CACHED_BYTES", 1000)
    small = SentencePieces(pieces.model)
    assert [small.encode_lines([line])[0] for line in SENTENCES[:50]] == expected
    assert small.encode_lines(SENTENCES[:50]) == expected


def test_the_cache_of_words_is_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = MODELS["bpe"]
    assert isinstance(pieces, SentencePieces)
    monkeypatch.setattr(subwords, "MAX_CACHED_BYTES", 100_000)
    small = SentencePieces(pieces.model)
    tracemalloc.start()
    for i in range(300):
        small.encode_lines([f"{i}" * 100])
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 150_000


def test_threads_that_share_a_tokeniser_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = MODELS["bpe"]
    assert isinstance(pieces, SentencePieces)
    expected = pieces.encode_lines(SENTENCES)
    monkeypatch.setattr(subwords, "MAX_CACHED_BYTES", 3000)
    small = SentencePieces(pieces.model)

    def encode(first: int) -> bool:
        lines = range(first, len(SENTENCES), 7)
        return [small.encode_lines([SENTENCES[i]])[0] for i in lines] == [expected[i] for i in lines]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(encode, [i % 7 for i in range(40)]))


def test_training_on_counted_words_is_training_on_the_lines(tmp_path: Path) -> None:
    model = io.BytesIO()
    lines = tmp_path / "lines"
    lines.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=0.9999,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    ours = learn((WORDS, {}), SubwordSettings(vocab_size=(420,), min_frequency=1))[0]
    assert SentencePieces(model.getvalue()).pieces == ours.pieces


def learn_uncut(byte_fallback: bool = True) -> bytes:
    settings = SubwordSettings(byte_fallback=byte_fallback, character_coverage=1.0)
    return learning.train({**WORDS, "ħ": 1, "qualm": 2}, settings, vocab_size=500)


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_the_cut_off_leaves_no_rare_piece_and_loses_no_text_that_bytes_can_write(byte_fallback: bool) -> None:
    words = {**WORDS, "ħ": 1, "qualm": 2}
    model = learn_uncut(byte_fallback)
    before = piece_counts(model, words)
    small = cut(model, before, 5)
    rare = {piece for piece, count in before.items() if count < 5 and piece[0] not in "<▁"}
    assert {"ħ", "q"} <= rare
    assert not rare & set(SentencePieces(small).pieces)
    after = piece_counts(small, words)
    assert all(count >= 5 for piece, count in after.items() if piece[0] != "<" and piece != "▁")
    tokenizer = Tokenizer(SentencePieces(small), Preprocessor("en"))
    ids = tokenizer.encode("qualm ħ the dog")
    if byte_fallback:
        assert tokenizer.decode(ids) == "qualm ħ the dog"
    else:
        assert tokenizer.unk_id in ids
        assert tokenizer.decode(ids).endswith("the dog")


def test_a_cut_model_is_still_a_model_of_sentencepiece() -> None:
    model = learn_uncut()
    small = cut(model, piece_counts(model, WORDS), 5)
    processor = sentencepiece.SentencePieceProcessor(model_proto=small)
    assert processor.decode(processor.encode("the dog ħ")) == "the dog ħ"
    assert cut(model, {}, 0) == model


def test_a_model_with_other_special_ids_is_taken_over(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=100, model_type="unigram", minloglevel=2
    )
    path = tmp_path / "theirs.model"
    path.write_bytes(model.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = Tokenizer(SentencePieces.read(path), Preprocessor("en"))
    for line in SENTENCES[:50]:
        assert [tokenizer.piece(i) for i in tokenizer.encode(line)] == theirs.encode(line, out_type=str)
        assert tokenizer.decode(tokenizer.encode(line)) == line
    assert tokenizer.encode("ħ")[-1] == tokenizer.unk_id
    assert sorted(tokenizer.pieces[4:]) == sorted(theirs.id_to_piece(i) for i in range(3, len(theirs)))


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.model"
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"no\.model is not a SentencePiece model"):
        SentencePieces.read(path)


@pytest.mark.parametrize("text", ["nonsense", "{}", '{"format": 1}', "[]", '{"format": 1, "kind": "new"}'])
def test_a_file_that_is_not_a_tokeniser_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        Tokenizer.load(path)


def test_a_saved_pair_is_the_pair(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    tokenizers.save(tmp_path)
    loaded = TokenizerPair.load(tmp_path)
    assert loaded.shared
    for before, after in ((tokenizers.source, loaded.source), (tokenizers.target, loaded.target)):
        assert after.state() == before.state()
        assert after.encode_batch(SENTENCES) == before.encode_batch(SENTENCES)


def test_pairs_with_different_pieces_are_not_shared() -> None:
    writing = Preprocessor("en")
    assert not TokenizerPair(Tokenizer(MODELS["bpe"], writing), Tokenizer(MODELS["unigram"], writing)).shared
    assert not TokenizerPair(Tokenizer(MODELS["bpe"], writing, ["<bt>"]), Tokenizer(MODELS["bpe"], writing)).shared


def test_a_vocabulary_too_small_for_the_characters_is_refused() -> None:
    with pytest.raises(InputError, match="vocabulary of 270 is too small"):
        learn((WORDS, {}), SubwordSettings(vocab_size=(270,), character_coverage=1.0))
