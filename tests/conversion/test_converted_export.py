"""A model that came from Hugging Face leaves for CTranslate2, Argos Translate, ONNX and Hugging Face again."""

import pytest

pytest.importorskip("transformers", reason="models of Hugging Face are made with transformers")
from foreign_models import WORDS, write_m2m100, write_marian

import deepnmt
from deepnmt.decoding.export import DESCRIPTION
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError

TEXTS = [" ".join(WORDS[start : start + 4]) for start in range(8)]


def test_an_opus_model_runs_in_ctranslate2(tmp_path):
    """With its biased output, a decoder that starts from zeros, positions from 0 and symbols that are not pieces."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    deepnmt.convert(write_marian(tmp_path / "opus", steps=60), tmp_path / "MODEL")
    written = deepnmt.export(tmp_path / "MODEL", tmp_path / "OUT", to="ctranslate2", sentences=TEXTS)
    assert written.agreement.max_difference < 1e-4
    translator = Translator(tmp_path / "MODEL")
    pieces = translator.tokenizers[0].source.subwords._processor.encode(TEXTS, out_type=str)
    found = ctranslate2.Translator(str(tmp_path / "OUT")).translate_batch(
        pieces, beam_size=4, length_penalty=1, min_decoding_length=0
    )
    expected = translator.translate_nbest(TEXTS, beam=4, length_penalty=1.0, allow_unknown=True)
    assert [result.hypotheses[0] for result in found] == [best.pieces for best, *_ in expected]
    assert deepnmt.export(tmp_path / "MODEL", to="ctranslate2", argos=True).path.suffix == ".argosmodel"


@pytest.mark.parametrize("separate", [False, True])
def test_an_opus_model_goes_back_to_hugging_face(separate, tmp_path):
    deepnmt.convert(write_marian(tmp_path / "opus", separate=separate), tmp_path / "MODEL")
    written = deepnmt.export(tmp_path / "MODEL", tmp_path / "OUT", to="huggingface", sentences=TEXTS)
    assert written.agreement.max_difference < 1e-4
    tokenizers = Translator(tmp_path / "MODEL").tokenizers[0]
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "OUT")
    assert [ids[:-1] for ids in theirs(TEXTS).input_ids] == tokenizers.source.encode_batch(TEXTS)


def test_many_languages_need_tokens_that_a_plain_sentencepiece_model_lacks(tmp_path):
    deepnmt.convert(write_m2m100(tmp_path / "m2m"), tmp_path / "MODEL", source_lang="en", target_lang="de")
    assert deepnmt.export(tmp_path / "MODEL", tmp_path / "OUT", to="ctranslate2").agreement.max_difference < 1e-4
    assert (tmp_path / "OUT" / DESCRIPTION).is_file()
    for to, argos in (("huggingface", False), ("ctranslate2", True)):
        with pytest.raises(InputError, match="it has no language symbols"):
            deepnmt.export(tmp_path / "MODEL", tmp_path / "ELSE", to=to, argos=argos)
