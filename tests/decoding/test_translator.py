"""From text to text: what a user of `Translator` may rely on."""

import json
import math
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from digits import WORDS, reversed_digits, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from toy_learning import padded

from deepnmt.data.forks import CAN_FORK, ForkedWorkers
from deepnmt.data.learning import train
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import EOS
from deepnmt.decoding.alignment import attention, group
from deepnmt.decoding.continuous import CannotFuseError
from deepnmt.decoding.pieces import Hypothesis, cut_texts, different
from deepnmt.decoding.search import Beams, search
from deepnmt.decoding.translator import Translator, in_processes, share_of_core
from deepnmt.errors import InputError
from deepnmt.model.cache import attend_slots
from deepnmt.model.storage import load_model, save_model
from deepnmt.model.transformer import Transformer

PAIRS = reversed_digits(60, seed=77_777)
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))


@pytest.fixture(scope="module")
def translator(digits_model):
    return Translator(digits_model)


@pytest.fixture(scope="module")
def unsure(random_model):
    return Translator(random_model)


def texts(found):
    return [[hypothesis.text for hypothesis in hypotheses] for hypotheses in found]


def pieces(found):
    return [[hypothesis.pieces for hypothesis in hypotheses] for hypotheses in found]


@pytest.mark.parametrize(
    "settings", [{}, {"beam": 1}, {"beam": 6, "penalty_form": "gnmt"}, {"sampling": True, "top_k": 1}]
)
def test_the_tiny_model_reverses_digits(translator, settings):
    right = sum(a == b for a, b in zip(translator.translate(SOURCES, **settings), TARGETS, strict=True))
    assert right >= 0.95 * len(TARGETS)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 4, "nbest": 4},
        {"beam": 1},
        {"beam": 4, "no_repeat_ngram": 2},
        {"beam": 4, "alignments": True},
        {"beam": 4, "prefixes": [target.split()[0] for target in TARGETS]},
        {"sampling": True, "nbest": 2, "seed": 4},
        {"sampling": True, "epsilon": 0.05},
        {"mbr": "chrf", "samples": 8},
    ],
    ids=["beam", "greedy", "no repetition", "alignments", "prefixes", "sampling", "epsilon", "mbr"],
)
def test_a_gpu_translates_as_a_cpu_does(digits_model, translator, settings):
    expected = translator.translate_nbest(SOURCES, **settings)
    found = Translator(digits_model, device="cuda").translate_nbest(SOURCES, **settings)
    assert [each[0].text for each in found] == [each[0].text for each in expected]
    for left, right in zip(found, expected, strict=True):
        assert left[0].score == pytest.approx(right[0].score, abs=1e-3)
        if left[0].alignment is not None:
            assert left[0].alignment.links == right[0].alignment.links


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_on_a_gpu_is_close(digits_model, translator, precision):
    found = Translator(digits_model, device="cuda", precision=precision).translate(SOURCES)
    assert sum(a == b for a, b in zip(found, translator.translate(SOURCES), strict=True)) >= 0.95 * len(SOURCES)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_are_close(digits_model, translator, precision):
    other = Translator(digits_model, precision=precision).translate_nbest(SOURCES)
    exact = translator.translate_nbest(SOURCES)
    same = sum(a[0].text == b[0].text for a, b in zip(other, exact, strict=True))
    assert same >= 0.95 * len(SOURCES)
    difference = [
        abs(a[0].log_prob - b[0].log_prob) for a, b in zip(other, exact, strict=True) if a[0].text == b[0].text
    ]
    assert 0 < sum(difference) / len(difference) < 0.1


@pytest.mark.parametrize("settings", [{"beam": 3, "nbest": 3}, {"beam": 1}, {"sampling": True, "nbest": 2, "seed": 4}])
def test_batch_size_and_order_change_nothing(unsure, settings):
    sources = [*SOURCES[:12], "", "eins"]
    settings = {**settings, "min_length": 5, "max_length_extra": 5}
    together = unsure.translate_nbest(sources, **settings)
    assert len({tuple(map(tuple, p)) for p in pieces(together)}) > 8, "too alike to show anything"
    one_by_one = [unsure.translate_nbest([source], **settings)[0] for source in sources]
    small = unsure.translate_nbest(sources, batch_tokens=12, **settings)
    backwards = unsure.translate_nbest(sources[::-1], **settings)[::-1]
    for other in (one_by_one, small, backwards):
        assert pieces(other) == pieces(together)
        for a, b in zip(other, together, strict=True):
            assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-3)


def test_empty_lines_stay_empty_and_order_is_kept(translator):
    sources = ["", SOURCES[0], "   ", "\t", SOURCES[1], ""]
    assert translator.translate(sources) == ["", TARGETS[0], "", "", TARGETS[1], ""]
    assert translator.translate([]) == []
    assert translator.translate(["", " "]) == ["", ""]


def test_n_best_are_sorted_unique_and_scored_by_the_model(translator, digits_model):
    model, tokenizers = load_model(digits_model), TokenizerPair.load(digits_model)
    target_ids = {piece: i for i, piece in enumerate(tokenizers.target.pieces)}
    for source, hypotheses in zip(SOURCES[:10], translator.translate_nbest(SOURCES[:10], beam=5, nbest=5), strict=True):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert 3 <= len(hypotheses) <= 5
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.text for hypothesis in hypotheses}) == len(hypotheses)
        for hypothesis in hypotheses:
            ids = [target_ids[piece] for piece in hypothesis.pieces]
            logits = model(padded([[*tokenizers.source.encode(source), EOS]]), torch.tensor([[EOS, *ids]]))
            expected = logits.log_softmax(-1)[0, range(len(ids) + 1), [*ids, EOS]].sum().item()
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-3)
            assert hypothesis.score == pytest.approx(expected / (len(ids) + 1) ** 0.6, abs=1e-3)


def test_of_hypotheses_with_one_text_the_best_stays():
    found = [Hypothesis(text, score, score, []) for text, score in (("a", -1.0), ("b", -2.0), ("a", -3.0), ("c", -4.0))]
    assert [(h.text, h.score) for h in different(found)] == [("a", -1.0), ("b", -2.0), ("c", -4.0)]


def test_prefixes_begin_the_translation(translator):
    prefixes = ["neun", "", "acht acht"]
    for prefix, translation in zip(prefixes, translator.translate(SOURCES[:3], prefixes=prefixes), strict=True):
        assert translation.startswith(prefix)
    with pytest.raises(InputError, match="3 texts but 1 prefixes"):
        translator.translate(SOURCES[:3], prefixes=["neun"])


def test_a_long_line_is_cut_with_a_warning_and_sinks_nothing(translator):
    sentence, expected = "eins zwei drei.", "drei zwei eins"
    long = " ".join([sentence] * 80)
    warned = []
    result = translator.translate(
        [SOURCES[0], long, SOURCES[1]],
        max_source_length=12,
        warn=lambda number, message: warned.append((number, message)),
    )
    assert [result[0], result[2]] == TARGETS[:2]
    assert result[1].count(expected.split()[-1]) >= 40, result[1]
    ((number, message),) = warned
    assert number == 1
    assert "more than max_source_length = 12: translated in" in message
    with pytest.warns(UserWarning, match="text 1 has .* subwords, more than max_source_length = 12"):
        translator.translate([long], max_source_length=12)


def test_every_piece_of_a_tagged_line_has_the_tag(digits_model, monkeypatch):
    pair = TokenizerPair.load(digits_model)
    tagged = Tokenizer(pair.source.subwords, pair.source.preprocessor, ["<bt>"])
    monkeypatch.setattr(pair, "source", tagged)
    pieces = cut_texts(["<bt> " + "eins zwei drei. " * 20], None, [pair], 10**6, 12, lambda *_: None)
    assert len(pieces) > 5
    assert all(piece.sources[0][0] == tagged.opening("<bt>")[0] and piece.length <= 13 for piece in pieces)


def test_a_word_of_ten_thousand_letters_does_not_crash(translator):
    warned = []
    (text,) = translator.translate(["z" * 10_000], max_length=3, warn=lambda *warning: warned.append(warning))
    assert len(warned) == 1
    assert isinstance(text, str)


def test_learned_positions_are_never_exceeded(tmp_path, digits_model):
    from dataclasses import replace

    from deepnmt.model.transformer import Transformer

    tokenizers = TokenizerPair.load(digits_model)
    torch.manual_seed(0)
    model = Transformer(replace(tiny_model(tokenizers).config, positions="learned", max_positions=20, tie_output=False))
    save_model(tmp_path, model)
    tokenizers.save(tmp_path)
    warned = []
    Translator(tmp_path).translate(
        [" ".join(WORDS * 5), "eins", "z" * 300],
        min_length=100,
        prefixes=[" ".join(WORDS * 5), "", ""],
        warn=lambda *warning: warned.append(warning),
    )
    assert {number for number, _ in warned} == {0, 2}


def test_alignments_sum_to_one_and_show_the_reversal(translator):
    (found,) = translator.translate_nbest(["eins zwei drei vier"], nbest=2, alignments=True)
    for hypothesis in found:
        alignment = hypothesis.alignment
        assert alignment.source_words == ["eins", "zwei", "drei", "vier"]
        assert " ".join(alignment.target_words) == hypothesis.text
        for row in alignment.weights:
            assert sum(row) == pytest.approx(1, abs=1e-6)
            assert len(row) == 4
    reversal = [(3, 0), (2, 1), (1, 2), (0, 3)]
    assert len(set(found[0].alignment.links) & set(reversal)) >= 3


def test_alignments_of_a_cut_line_do_not_cross_the_cut(translator):
    text = "eins zwei. drei vier."
    (found,) = translator.translate_nbest([text], alignments=True, max_source_length=5, warn=lambda *warning: None)
    alignment = found[0].alignment
    assert len(alignment.weights) == len(alignment.target_words)
    assert all(sum(row) == pytest.approx(1) for row in alignment.weights)
    assert alignment.source_words[:2] == ["eins", "zwei."]


def test_attention_rows_sum_to_one_whatever_the_company(digits_model):
    model = load_model(digits_model)
    sources, targets = [[5, 6, 7, EOS], [9, EOS]], [[7, 6], [9, 9, 9, 9]]
    together = attention(model, padded(sources), targets, EOS)
    for source, target, matrix in zip(sources, targets, together, strict=True):
        assert matrix.shape == (len(target) + 1, 4)
        torch.testing.assert_close(matrix.sum(1), torch.ones(len(target) + 1))
        (alone,) = attention(model, padded([source]), [target], EOS)
        torch.testing.assert_close(matrix[:, : len(source)], alone, atol=1e-5, rtol=1e-4)


def test_attention_in_one_pass_is_that_of_the_steps(digits_model, monkeypatch):
    """Whether the weights of all sentences fit or are computed sentence by sentence."""
    model, weights = load_model(digits_model), []
    sources, targets = [[5, 6, 7, EOS], [9, EOS]], [[7, 6, 8], [9, 9]]

    def recorded(*arguments):
        attended, of_heads = attend_slots(*arguments)
        weights.append(of_heads.mean(1)[:, 0])
        return attended, of_heads

    monkeypatch.setattr("deepnmt.model.cache.attend_slots", recorded)
    with torch.inference_mode():
        cache, expected = model.start(model.encode(padded(sources))), []
        for symbols in torch.tensor([[EOS, EOS], *map(list, zip([7, 6, 8], [9, 9, EOS], strict=True))]):
            _, cache = model.step(symbols, cache)
            expected.append(weights[-1])  # what the last layer did last
    for most in (2**20, 1):
        monkeypatch.setattr("deepnmt.decoding.alignment.MAX_WEIGHTS", most)
        for number, matrix in enumerate(attention(model, padded(sources), targets, EOS)):
            rows = torch.stack(expected, 1)[number, : len(targets[number]) + 1]
            torch.testing.assert_close(matrix, rows, atol=1e-5, rtol=1e-4)


def test_subwords_are_grouped_into_words(digits_model):
    tokenizer = TokenizerPair.load(digits_model).source
    words, index = group(tokenizer, tokenizer.encode("zwei neunvier acht."))
    assert words == ["zwei", "neunvier", "acht."]
    assert len(index) == len(tokenizer.encode("zwei neunvier acht."))
    assert index.tolist() == sorted(index.tolist())


def test_an_ensemble_of_a_model_with_itself_is_the_model(digits_model, translator):
    both = Translator([digits_model, digits_model]).translate_nbest(SOURCES[:8], nbest=2)
    alone = translator.translate_nbest(SOURCES[:8], nbest=2)
    assert texts(both) == texts(alone)
    assert both[0][0].score == pytest.approx(alone[0][0].score, abs=1e-4)


def test_an_ensemble_uses_both_models(digits_model, random_model, translator):
    both = Translator([digits_model, random_model]).translate_nbest(SOURCES[:8])
    assert all(
        a[0].log_prob < b[0].log_prob for a, b in zip(both, translator.translate_nbest(SOURCES[:8]), strict=True)
    )


def test_an_ensemble_of_strangers_is_refused_by_name(digits_model, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(digits_model, other)
    settings = SubwordSettings(byte_fallback=False, character_coverage=1.0)
    model = train({"hello": 9, "world": 5}, settings, vocab_size=20)
    tokenizer = Tokenizer(SentencePieces(model), Preprocessor("en"))
    TokenizerPair(TokenizerPair.load(digits_model).source, tokenizer).save(other)
    with pytest.raises(InputError, match=r"other and .*digits have different target vocabularies"):
        Translator([digits_model, other])


def changed(digits_model, folder, change):
    """A copy of the model after `change`."""
    shutil.copytree(digits_model, folder)
    model = load_model(digits_model)
    with torch.no_grad():
        model = change(model) or model
    save_model(folder, model)
    return folder


def with_more_rows(model, count=70):
    """Rows that the tokeniser has no pieces for, one of which the model prefers to all others."""
    size = model.config.target_vocab_size
    larger = Transformer(replace(model.config, source_vocab_size=size + count, target_vocab_size=size + count))
    rows = 100 * torch.randn(count, model.config.decoder.dim, generator=torch.Generator().manual_seed(1))
    state = {name: torch.cat([w, rows]) if len(w) == size else w for name, w in model.state_dict().items()}
    larger.load_state_dict(state)
    return larger.eval()


@pytest.mark.parametrize(
    "settings", [{}, {"beam": 1}, {"sampling": True, "seed": 3}, {"terms": {"eins": "null"}}], ids=str
)
def test_output_rows_without_a_piece_are_never_chosen(digits_model, tmp_path, settings):
    folder = changed(digits_model, tmp_path / "larger", with_more_rows)
    translator = Translator(folder)
    logits = load_model(folder)(torch.tensor([[5, EOS]]), torch.tensor([[EOS]]))
    assert logits.argmax() >= translator.tokenizers[0].target.vocab_size
    assert translator.translate(SOURCES[:3], **settings)
    with pytest.raises(
        InputError, match=r"digits has \d+ output rows, but .*larger has \d+: they cannot form an ensemble"
    ):
        Translator([folder, digits_model])


def test_weights_that_are_not_numbers_are_refused_by_name(digits_model, tmp_path):
    def spoil(model):
        model.encoder.layers[0].feed_forward.expand.weight[3, 4] = math.nan

    folder = changed(digits_model, tmp_path / "spoiled", spoil)
    message = r"spoiled: not all weights of encoder.layers.0.feed_forward.expand.weight are numbers \(NaN\)"
    with pytest.raises(InputError, match=message):
        Translator(folder)


@pytest.mark.parametrize("settings", [{}, {"beam": 1}, {"sampling": True}], ids=str)
def test_an_output_that_is_not_a_number_is_named_with_its_model(digits_model, tmp_path, settings):
    def overflow(model):
        model.decoder.final_norm.weight.mul_(1e20)
        model.output_weight.mul_(1e20)

    folder = changed(digits_model, tmp_path / "huge", overflow)
    with pytest.raises(InputError, match=r"huge: the model's output for 'neun .*…' is not a number \(NaN\)"):
        Translator(folder).translate(["", "neun " * 20], **settings)
    with pytest.raises(InputError, match="huge: the model's output for 'neun' is"):
        Translator([digits_model, folder]).translate(["neun"])
    in_training = Translator.of(load_model(folder), TokenizerPair.load(folder))
    with pytest.warns(UserWarning, match="text 1 has no translation"):
        assert in_training.translate(["neun"], **settings) == [""]


def test_no_memory_is_allocated_for_absurd_lengths(translator):
    for settings in ({"max_length": 10**12}, {"max_length_ratio": 1e12}, {"max_length_extra": 10**12}):
        assert translator.translate(SOURCES[:1], beam=2, **settings) == TARGETS[:1]


def test_patience_counts_at_beam_one(unsure):
    found = [unsure.translate_nbest(SOURCES, beam=1, patience=patience) for patience in (1.0, 50.0)]
    assert found[0] != found[1]
    assert all(long[0].score >= short[0].score for short, long in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": True, "patience": 2.0}, "patience = 2.0 has no effect with sampling"),
        ({"bean": 4}, "unknown setting bean; did you mean beam?"),
        ({"beam": "four"}, "beam must be a whole number, not 'four'"),
        ({"beam": 2, "nbest": 3}, "nbest must be between 1 and the beam"),
        ({"penalty_form": "gnmd"}, "penalty_form is 'gnmd', not one of length, gnmt; did you mean gnmt?"),
        ({"prefixes": "neun"}, "prefixes must be a list of strings, not one string"),
    ],
)
def test_senseless_settings_are_refused(translator, settings, message):
    with pytest.raises(InputError, match=message):
        translator.translate_nbest(["eins"], **settings)


def test_texts_are_strings_in_any_collection(translator):
    assert translator.translate(source for source in SOURCES[:2]) == TARGETS[:2]
    for texts, message in (("eins", "a list of strings, not one string"), (["eins", None], "number 2 is None")):
        with pytest.raises(InputError, match=f"texts must be .*{message}"):
            translator.translate(texts)
        with pytest.raises(InputError, match=f"translations must be .*{message}"):
            translator.likelihoods(["eins"], texts)
    with pytest.raises(InputError, match="1 texts but 2 translations"):
        translator.likelihoods(["eins"], ["eins", "zwei"])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_pickled_translator_loads_its_model_again(digits_model, precision):
    translator = pickle.loads(pickle.dumps(Translator(digits_model, precision=precision)))
    assert translator.translate(SOURCES[:2]) == TARGETS[:2]
    in_memory = Translator.of(load_model(digits_model), TokenizerPair.load(digits_model))
    with pytest.raises(TypeError, match="a Translator around a model in memory cannot be pickled"):
        pickle.dumps(in_memory)


@pytest.mark.parametrize(
    "settings",
    [
        {"nbest": 3, "alignments": True},
        {"beam": 1, "prefixes": [target.split()[0] for target in TARGETS]},
        {"sampling": True, "nbest": 2},
        {"mbr": "chrf", "samples": 8},
        {"terms": {"eins": "zwei zwei"}},
    ],
    ids=["n best", "prefixes", "samples", "mbr", "terms"],
)
def test_processes_translate_as_threads_do(unsure, settings, monkeypatch):
    """Each way with batches of its own."""
    settings = {"max_length": 6, **settings}
    expected = unsure.translate_nbest(SOURCES, **settings)
    tasks = []
    as_done = ForkedWorkers.as_done
    monkeypatch.setattr(ForkedWorkers, "as_done", lambda forks, some: (tasks.extend(some), as_done(forks, some))[1])
    torch.set_num_threads(2)
    threads = unsure.translate_nbest(SOURCES, **settings)
    with in_processes(unsure):
        first, again = (unsure.translate_nbest(SOURCES, **settings) for _ in range(2))
    assert len(tasks) == (0 if not CAN_FORK else 12 if "terms" in settings else 8)  # the second searches too
    for found in (threads, first, again):
        assert texts(found) == texts(expected)
        for left, right in zip(found, expected, strict=True):
            assert left[0].score == pytest.approx(right[0].score, abs=1e-4)
            if left[0].alignment is not None:
                assert left[0].alignment.links == right[0].alignment.links


@given(sentences=st.integers(1, 3000), cores=st.integers(1, 200))
def test_every_core_gets_its_share_of_the_sentences(sentences, cores):
    forked, in_threads = (share_of_core(sentences, cores, is_forked) for is_forked in (True, False))
    assert cores <= math.ceil(sentences / forked) <= max(2 * cores, sentences // 8 + 1) or forked == sentences < cores
    assert in_threads in (forked, sentences)
    assert in_threads == sentences or in_threads >= 8


def test_threads_share_a_translator(translator):
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda n: translator.translate(SOURCES[n:]), range(8))) == [
            translator.translate(SOURCES[n:]) for n in range(8)
        ]


def test_senseless_machines_are_refused(digits_model):
    with pytest.raises(InputError, match="unknown precision 'int4'"):
        Translator(digits_model, precision="int4")
    with pytest.raises(InputError, match="fp16 is for the GPU"):
        Translator(digits_model, precision="fp16")
    with pytest.raises(InputError, match=r"is not a MODEL folder: it has no meta\.json"):
        Translator(digits_model.parent)
    with pytest.raises(InputError, match="at least one model"):
        Translator([])
    with pytest.raises(InputError, match="device 'gpu' is unknown"):
        Translator(digits_model, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch sees no GPU"):
            Translator(digits_model, device="cuda")


def test_unknown_symbols_are_said_only_when_allowed(unsure):
    settings = {"sampling": True, "nbest": 40, "min_length": 10, "temperature": 9.0}
    assert "<unk>" not in {p for h in unsure.translate_nbest(["eins"], **settings)[0] for p in h.pieces}
    assert "<unk>" in {p for h in unsure.translate_nbest(["eins"], allow_unknown=True, **settings)[0] for p in h.pieces}


def test_one_long_text_among_many_short_ones_is_cheap(translator):
    """The long one has a batch of its own: the padding of others does not grow with it."""
    seen = []
    engine = translator.prepared[0]
    original = engine.start
    engine.start = lambda source, *more: (seen.append(tuple(source.shape)), original(source, *more))[1]
    try:
        translator.translate([*["eins"] * 50, " ".join(WORDS * 15)], max_length=2, batch_tokens=300)
    finally:
        del engine.start
    assert seen[0][0] == 1
    assert sum(rows * width for rows, width in seen) < 600


def test_batches_side_by_side_give_what_one_after_the_other_gives(unsure):
    settings = {"beam": 3, "nbest": 2, "min_length": 4, "max_length": 9, "batch_tokens": 40}
    expected, counted = unsure.translate_nbest(SOURCES, **settings), []
    torch.set_num_threads(3)
    try:
        found = unsure.translate_nbest(SOURCES, done=counted.append, **settings)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert pieces(found) == pieces(expected)
    assert sum(counted) == len(SOURCES)


def test_a_model_is_searched_as_its_recipe_says_unless_told_otherwise(digits_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(digits_model, folder)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "decoding": {"beam": 2, "length_penalty": 0.0}}))
    told, plain = Translator(folder), Translator(digits_model)
    text = SOURCES[:1]
    (mine,), (theirs,) = (
        told.translate_nbest(text, nbest=2),
        plain.translate_nbest(text, nbest=2, beam=2, length_penalty=0.0),
    )
    assert [(h.text, h.score) for h in mine] == [(h.text, h.score) for h in theirs]
    assert mine[0].score == mine[0].log_prob  # no penalty
    assert told.translate_nbest(text, length_penalty=1.0)[0][0].score > mine[0].score


class Slots:
    """In place of the search in slots: the plain search, one sentence at a time, the last first."""

    def __init__(self, engine, failures=()):
        self.engine, self.failures, self.most, self.asked = engine, list(failures), 4, []

    def search(self, sources, rules, config):
        self.asked.append(len(sources))
        for number in reversed(range(len(sources))):
            if self.failures and number == self.failures[0][0]:
                raise self.failures.pop(0)[1]
            one = rules.select(torch.tensor([number]))
            source = torch.tensor([sources[number]])
            state = self.engine.start(source, config.beam)
            yield [(number, search(self.engine.step, state, Beams(one, config))[0])]

    def forget(self):
        self.most //= 2


SLOT_TEXTS = ["eins zwei", "", "drei", "vier fünf sechs sieben"]


@pytest.mark.parametrize("failures", [[], [(1, torch.OutOfMemoryError())]], ids=["as it is", "without memory"])
def test_slots_translate_as_batches_do(digits_model, monkeypatch, failures):
    translator = Translator(digits_model)
    expected = translator.translate_nbest(SLOT_TEXTS, nbest=2, alignments=True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    translator.continuous = Slots(translator.prepared[0], failures)
    done = []
    found = translator.translate_nbest(SLOT_TEXTS, nbest=2, alignments=True, done=done.append)
    assert [[h.text for h in hypotheses] for hypotheses in found] == [[h.text for h in hs] for hs in expected]
    for hypotheses, others in zip(found, expected, strict=True):
        # Aligned in batches of other shapes: the same up to the order of sums.
        same, other = hypotheses[0].alignment, others[0].alignment
        assert (same is None) == (other is None)
        if same is not None:
            assert (same.source_words, same.target_words) == (other.source_words, other.target_words)
            torch.testing.assert_close(torch.tensor(same.weights), torch.tensor(other.weights), atol=1e-4, rtol=1e-3)
    assert sum(done) == 3
    assert translator.continuous.asked == ([3, 2] if failures else [3])


def test_without_kernels_the_batches_take_over(digits_model):
    translator = Translator(digits_model)
    expected = translator.translate(SLOT_TEXTS)
    translator.continuous = Slots(translator.prepared[0], [(0, CannotFuseError("no compiler"))])
    with pytest.warns(UserWarning, match="without fused kernels, which do not run here: no compiler"):
        assert translator.translate(SLOT_TEXTS) == expected
    assert translator.continuous is None


def test_what_slots_cannot_do_goes_to_batches(digits_model):
    translator = Translator(digits_model)
    translator.continuous = slots = Slots(translator.prepared[0])
    drawn = {"sampling": True, "epsilon": 0.1}, {"mbr": "chrf", "samples": 4}
    for settings in ({"beam": 1}, {"no_repeat_ngram": 2}, *drawn, {"prefixes": ["zwei", "", "", ""]}):
        assert len(translator.translate(SLOT_TEXTS, **settings)) == 4
    assert slots.asked == []
