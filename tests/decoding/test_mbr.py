"""Minimum Bayes risk: the choice of a plain double loop, whatever the batch, the order or the model."""

import json
import warnings
from dataclasses import replace

import pytest
from digits import reversed_digits
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import deepnmt
from deepnmt.cli import main
from deepnmt.decoding.config import MBR_EPSILON
from deepnmt.decoding.mbr import by_expected_utility
from deepnmt.decoding.pairwise import pairwise
from deepnmt.decoding.search import Found
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError

SOURCES, TARGETS = map(list, zip(*reversed_digits(12, seed=6), strict=True))
SHORT = {"min_length": 2, "max_length": 6}
METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}


@pytest.fixture(scope="module")
def unsure(random_model):
    return Translator(random_model)


def mean_utilities(texts, metric):
    """Of each sample with the others as references."""
    return [
        sum(metric.sentence_score(text, [other]).score for j, other in enumerate(texts) if j != i) / (len(texts) - 1)
        for i, text in enumerate(texts)
    ]


@pytest.mark.parametrize("name", METRICS)
def test_the_ranking_is_that_of_a_plain_double_loop(unsure, name):
    settings = {"samples": 24, "seed": 3, "epsilon": 0.1, **SHORT}
    found = unsure.translate_nbest(SOURCES, mbr=name, nbest=24, **settings)
    del settings["samples"]
    drawn = unsure.translate_nbest(SOURCES, sampling=True, nbest=24, **settings)
    merged = 0
    for hypotheses, samples in zip(found, drawn, strict=True):
        texts = [sample.text for sample in samples]
        expected = dict(zip(texts, mean_utilities(texts, METRICS[name]), strict=True))
        assert {each.text: each.score for each in hypotheses} == pytest.approx(expected, abs=1e-9)
        assert [each.score for each in hypotheses] == sorted((each.score for each in hypotheses), reverse=True)
        best_log_prob = {sample.text: sample.log_prob for sample in reversed(samples)}
        for each in hypotheses:
            assert each.log_prob == pytest.approx(best_log_prob[each.text], abs=1e-4)
        merged += len(samples) - len(hypotheses)
    assert merged > 10, "some samples are equal"
    best = unsure.translate(SOURCES, mbr=name, **settings, samples=24)
    assert best == [hypotheses[0].text for hypotheses in found]


def test_equal_texts_are_references_of_each_other():
    samples = [Found([i], -float(i), -float(i)) for i in range(5)]
    texts = ["far away", "a b c", "a b d", "a b c", ""]
    ranked = by_expected_utility(samples, texts, pairwise("chrf", "en"))
    chrf = METRICS["chrf"].sentence_score
    near = chrf("a b c", ["a b d"]).score + chrf("a b c", ["far away"]).score
    assert ranked[0] == replace(samples[1], score=pytest.approx((100 + near) / 4))
    assert [sample.symbols for sample in ranked] == [[1], [2], [0], [4]]
    assert ranked[-1].score == 0


def test_ties_and_single_samples_keep_the_order_of_the_samples():
    samples = [Found([i], -float(i), -float(i)) for i in range(3)]
    utility = pairwise("chrf", "en")
    assert [each.symbols for each in by_expected_utility(samples, ["x", "z", "y"], utility)] == [[0], [1], [2]]
    assert by_expected_utility(samples[:1], ["x"], utility) == [replace(samples[0], score=0.0)]
    assert by_expected_utility([], [], utility) == []


def test_batch_size_and_order_change_nothing(unsure):
    sources, settings = [*SOURCES, "", "eins"], {"mbr": "chrf", "samples": 16, "nbest": 3, **SHORT}
    together = unsure.translate_nbest(sources, **settings)
    one_by_one = [unsure.translate_nbest([source], **settings)[0] for source in sources]
    small = unsure.translate_nbest(sources, batch_tokens=12, **settings)
    backwards = unsure.translate_nbest(sources[::-1], **settings)[::-1]
    for other in (one_by_one, small, backwards):
        assert [[each.text for each in row] for row in other] == [[each.text for each in row] for row in together]
        assert [[each.score for each in row] for row in other] == [[each.score for each in row] for row in together]
    assert unsure.translate(sources, mbr="chrf", samples=16, seed=2, **SHORT) != [row[0].text for row in together]


def test_many_samples_are_drawn_in_small_batches(unsure, monkeypatch):
    expected, rows = unsure.translate(SOURCES, mbr="chrf", samples=16, **SHORT), []
    original = unsure.prepared[0].start
    monkeypatch.setattr(
        unsure.prepared[0], "start", lambda ids, *widths: rows.append(len(ids) * widths[1]) or original(ids, *widths)
    )
    monkeypatch.setattr("deepnmt.decoding.translator.ROWS", {"cpu": 40})
    assert unsure.translate(SOURCES, mbr="chrf", samples=16, **SHORT) == expected
    assert rows == [32] * 6
    assert unsure.translate(SOURCES[:2], mbr="chrf", samples=64, **SHORT)
    assert rows[6:] == [64, 64]


def test_epsilon_has_a_default_of_its_own(unsure):
    def drawn(**settings):
        return unsure.translate(SOURCES, mbr="chrf", samples=8, **SHORT, **settings)

    assert drawn() == drawn(epsilon=MBR_EPSILON)
    assert drawn() != drawn(epsilon=0.0)


def test_it_combines_with_what_samples_combine_with(random_model, digits_model):
    sure = Translator([digits_model, digits_model], precision="int8")
    assert sure.translate(SOURCES, mbr="chrf", samples=8) == sure.translate(SOURCES)
    found = sure.translate_nbest(SOURCES, mbr="bleu", samples=8, alignments=True, prefixes=["neun"] * len(SOURCES))
    for (best, *_), source in zip(found, SOURCES, strict=True):
        assert best.text.startswith("neun") and best.alignment.source_words == source.split()
    kept = Translator(random_model).translate(["eins {name}"], mbr="chrf", samples=8, keep_placeholders=True, **SHORT)
    assert "{name}" in kept[0]


def test_a_long_text_is_chosen_piece_by_piece(unsure):
    text = ". ".join(SOURCES[:4])
    settings = {"mbr": "chrf", "samples": 8, "nbest": 2, "max_length": 6}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (whole,) = unsure.translate_nbest([text], max_source_length=12, **settings)
    assert "translated in" in str(caught[0].message)
    parts = unsure.translate_nbest([f"{part}." for part in SOURCES[:3]] + [SOURCES[3]], **settings)
    assert whole[0].text == " ".join(part[0].text for part in parts)
    assert whole[0].score == pytest.approx(sum(part[0].score for part in parts) / 4)
    assert len(whole) == 2 and whole[0].score >= whole[1].score


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mbr": "comet"}, "mbr is 'comet', not one of chrf, bleu"),
        ({"mbr": "chrf", "samples": 1}, "samples = 1 must be at least 2"),
        ({"mbr": "chrf", "samples": 4, "nbest": 5}, r"nbest must be between 1 and the number of samples \(4\), not 5"),
        ({"samples": 8}, "samples = 8 has no effect without mbr"),
        ({"sampling": True, "samples": 8}, "samples = 8 has no effect without mbr"),
        ({"mbr": "chrf", "patience": 2.0}, "patience = 2.0 has no effect with sampling"),
        ({"mbr": "chrf", "epsilon": 1.0}, "epsilon = 1.0 must be at least 0 and below 1"),
        ({"epsilon": 0.1}, "epsilon = 0.1 has no effect without sampling"),
        ({"mbr": "chrf", "terms": {"eins": "null"}}, "terms need a beam search: omit them, or mbr"),
    ],
    ids=str,
)
def test_senseless_settings_are_refused(unsure, settings, message):
    with pytest.raises(InputError, match=message):
        unsure.translate_nbest(["eins"], **settings)


def test_the_command_writes_expected_utilities(random_model, tmp_path, capsys):
    source, output = tmp_path / "source", tmp_path / "out"
    source.write_text("".join(f"{line}\n" for line in [*SOURCES[:3], ""]), encoding="utf-8")
    options = ["--mbr", "chrf", "--samples", "8", "--min-length", "2", "--max-length", "6", "--threads", "1"]
    command = ["translate", str(random_model), "--input", str(source), "--output", str(output), *options]
    settings = {"mbr": "chrf", "samples": 8, **SHORT}
    found = Translator(random_model).translate_nbest([*SOURCES[:3], ""], nbest=2, **settings)
    assert main([*command, "--nbest", "2"]) == 0
    rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert rows == [
        [str(number), f"{each.score:.4f}", each.text] for number, row in enumerate(found, start=1) for each in row
    ]
    assert main([*command, "--json"]) == 0
    objects = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [[each["score"] for each in row["hypotheses"]] for row in objects] == [[row[0].score] for row in found]
    reference = tmp_path / "reference"
    reference.write_text("".join(f"{line}\n" for line in [*TARGETS[:3], ""]), encoding="utf-8")
    evaluation = deepnmt.evaluate(random_model, source, reference, device="cpu", **settings)
    assert evaluation.hypotheses == [row[0].text for row in found]
    assert evaluation.settings["mbr"] == "chrf"


def test_a_student_may_learn_from_it(random_model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.de").write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    command = ["distill", str(random_model), "--source", "train.de", "--out", "kd", "--threads", "1", "--device", "cpu"]
    options = ["--mbr", "chrf", "--samples", "8", "--min-length", "2", "--max-length", "6"]
    assert main([*command, *options, "--reference", "train.de"]) == 2
    assert "mbr and the reference both choose the translation" in capsys.readouterr().err
    assert main([*command, *options]) == 0
    expected = Translator(random_model).translate(SOURCES, mbr="chrf", samples=8, **SHORT)
    assert (tmp_path / "kd.en").read_text(encoding="utf-8").splitlines() == expected
