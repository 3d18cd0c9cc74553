"""`deepnmt likelihood`: a translation is as probable as the search says, in any batch; what does not fit is refused."""

import json
import math

import pytest
from digits import reversed_digits

import deepnmt
from deepnmt.cli import main
from deepnmt.errors import InputError

SOURCES, TARGETS = map(list, zip(*reversed_digits(12, seed=5), strict=True))


def test_the_likelihood_of_a_hypothesis_is_the_one_of_the_search(digits_model, monkeypatch):
    monkeypatch.setattr("deepnmt.decoding.likelihood.BATCH_TOKENS", 40)
    translator = deepnmt.Translator(digits_model)
    found = [
        (text, one)
        for text, hypotheses in zip(SOURCES, translator.translate_nbest(SOURCES, beam=4, nbest=4), strict=True)
        for one in hypotheses
    ]
    likelihoods = translator.likelihoods([text for text, _ in found], [one.text for _, one in found])
    same = [
        (one, other)
        for (_, one), other in zip(found, likelihoods, strict=True)
        if [*one.pieces, "</s>"] == other.pieces
    ]
    assert len(same) > len(SOURCES)
    for one, other in same:
        assert other.log_prob == pytest.approx(one.log_prob, abs=1e-4)


def test_the_command_writes_a_line_for_each_pair(digits_model, tmp_path, capsys):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("\n".join([*SOURCES, ""]) + "\n")
    target.write_text("\n".join([*TARGETS, ""]) + "\n")
    command = ["likelihood", str(digits_model), "--source", str(source), "--target", str(target), "--device", "cpu"]
    assert main([*command, "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert len(rows) == len(SOURCES) + 1
    log_probs, subwords = [float(row[0]) for row in rows], [int(row[1]) for row in rows]
    assert max(log_probs) < 0 and subwords[-1] == 1
    assert f"perplexity {math.exp(-sum(log_probs) / sum(subwords)):.3f} over {sum(subwords)} subwords" in err
    assert main([*command, "--json", "--threads", "1"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert sum(first["log_probs"]) == pytest.approx(log_probs[0], abs=1e-4)
    assert first["pieces"][-1] == "</s>"

    target.write_text("eins\n")
    assert main(command) == 2
    assert f"{source} has {len(SOURCES) + 1} lines and {target} has 1" in capsys.readouterr().err
    with pytest.raises(InputError, match="likelihoods are those of one model, not of 2"):
        deepnmt.Translator([digits_model, digits_model]).likelihoods(["eins"], ["eins"])


def test_a_line_longer_than_the_positions_is_named(digits_model):
    translator = deepnmt.Translator(digits_model)
    translator.max_positions = 4
    assert translator.likelihoods([], []) == []
    with pytest.raises(InputError, match="line 2 has 10 subwords, but the model has 4 positions"):
        translator.likelihoods(["eins", "eins " * 9], ["eins", "eins"])
