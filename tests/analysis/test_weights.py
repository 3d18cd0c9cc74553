"""The learned connection weights: which are shown, under which names, and in every form they are written."""

import csv
import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import torch
from pytest import approx, fixture, mark, raises

from deepnmt.analysis.charts import bar_chart, heat_map
from deepnmt.analysis.weights import ConnectionWeights, coloured, learned_weights, to_csv, to_text
from deepnmt.cli import main
from deepnmt.errors import InputError
from deepnmt.heatmap import Colours
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.storage import save_model
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer

UNDRAWN = ("residual", "dense", "average", "coordinated", "aggregated")  # nothing is learned, or no matrix
LEARNED = [kind for kind in CONNECTIONS if kind not in UNDRAWN]
PNG = b"\x89PNG"


def model_of(connection, encoder_layers=5, decoder_layers=2):
    def stack(layers):
        return StackConfig(num_layers=layers, dim=8, ffn_dim=8, num_heads=2, connection=connection)

    config = ModelConfig(
        source_vocab_size=9, target_vocab_size=9, encoder=stack(encoder_layers), decoder=stack(decoder_layers)
    )
    return Transformer(config).eval()


def weights_of(matrix):
    rows, columns = tuple(f"x{k}" for k in range(len(matrix))), tuple(f"y{k}" for k in range(len(matrix[0])))
    return ConnectionWeights("encoder", "dlcl", matrix, rows, columns)


@fixture
def folder(tmp_path):
    torch.manual_seed(0)
    model = model_of(DlclConfig())
    with torch.no_grad():
        model.encoder.connection.weight.mul_(torch.randn_like(model.encoder.connection.weight) * 4)
    save_model(tmp_path / "model", model)
    return tmp_path / "model"


def call(*arguments):
    return main(["inspect", "weights", *map(str, arguments)])


def test_points_under_a_tenth_or_under_a_twentieth_of_the_rows_largest_are_blank():
    shown = weights_of([[0.09, -0.11, 0.0], [4.0, 0.19, -0.21], [0.1, -0.1, 0.05]]).shown(mask=True)
    assert np.isnan(shown).tolist() == [[True, False, True], [False, True, False], [False, False, True]]


def test_without_the_rule_only_what_is_not_connected_is_blank():
    shown = weights_of([[0.01, 0.0], [0.5, -0.02]]).shown(mask=False)
    assert np.isnan(shown).tolist() == [[False, True], [False, False]]


def test_a_column_holds_the_weights_of_one_output_in_all_that_follows():
    weights = weights_of([[1, 0, 0], [2, 3, 0], [4, 5, 6]])
    assert weights.profile(1) == [("x1", 3.0), ("x2", 5.0)]
    wide = weights_of([[1, 0], [2, 3], [4, 5]])
    assert wide.profile(1) == [("x1", 3.0), ("x2", 5.0)]
    with raises(InputError, match="column = 3: the encoder has columns 0 to 2"):
        weights.profile(3)


@mark.parametrize("kind", list(CONNECTIONS))
def test_weights_are_found_where_a_scheme_learns_them(kind):
    found = learned_weights(model_of(CONNECTIONS[kind].Config()))
    assert bool(found) == (kind in LEARNED)


def test_rows_are_named_by_what_reads_them():
    (encoder, decoder) = learned_weights(model_of(DlclConfig()))
    assert encoder.rows == ("x1", "x2", "x3", "x4", "x5", "x6")
    assert (decoder.stack, decoder.columns) == ("decoder", ("y0", "y1", "y2"))
    assert learned_weights(model_of(CONNECTIONS["fusion"].Config()))[0].rows == ("result",)
    transparent = learned_weights(model_of(CONNECTIONS["transparent"].Config()))[0]
    assert transparent.rows == ("decoder 1", "decoder 2")
    assert [sum(row) for row in transparent.matrix] == approx([1.0] * 2, abs=1e-5)


@mark.parametrize("kind", SUBLAYERS)
def test_factors_of_sublayers_are_found_where_a_scheme_learns_them(kind):
    stack = StackConfig(num_layers=3, dim=8, ffn_dim=8, num_heads=2, sublayer=SUBLAYERS[kind].Config())
    model = Transformer(ModelConfig(source_vocab_size=9, target_vocab_size=9, encoder=stack, decoder=stack))
    found = learned_weights(model)
    assert bool(found) == (kind in ("layer-scale", "admin", "rezero"))
    if found:
        with torch.no_grad():
            model.decoder.layers[1].around_cross_attention.weight.fill_(0.7)
        encoder, decoder = learned_weights(model)
        assert (encoder.title, encoder.rows) == (f"3-layer encoder, {kind}", ("attention", "feed-forward"))
        assert decoder.columns == ("layer 1", "layer 2", "layer 3")
        assert decoder.matrix[1][1] == approx(0.7)
        assert kind in to_text(decoder, mask=False) and decoder.profile(1)[1] == ("cross-attention", approx(0.7))


def test_fixed_weights_are_not_learned():
    assert learned_weights(model_of(DlclConfig(learned=False))) == []


def test_the_papers_column_is_the_default_where_it_exists():
    assert learned_weights(model_of(DlclConfig(), encoder_layers=14))[0].default_column == 10
    assert learned_weights(model_of(DlclConfig()))[0].default_column == 2


def test_csv_has_every_connected_weight_as_the_model_has_it(folder, tmp_path):
    out = tmp_path / "weights.csv"
    assert call(folder, "--out", out) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 6 * 7 // 2 + 3 * 4 // 2
    from deepnmt.model.storage import load_model

    matrix = load_model(folder).encoder.connection.matrix()
    cell = next(row for row in rows if (row["stack"], row["row"], row["column"]) == ("encoder", "x4", "y2"))
    assert float(cell["weight"]) == approx(float(matrix[3, 2]), abs=1e-6)
    assert {row["shown"] for row in rows} == {"0", "1"}


@mark.parametrize("name", ["w.png", "w.svg", "w.pdf"])
def test_figures_are_written_and_equal_when_drawn_again(folder, tmp_path, name):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        assert call(folder, "--out", tmp_path / place / name, "--column", 1) == 0
    one, two = ((tmp_path / place / name).read_bytes() for place in ("one", "two"))
    assert len(one) > 5000
    if name.endswith("png"):
        assert one.startswith(PNG)
        assert one == two


def test_the_page_loads_nothing_and_tells_every_weight(folder, tmp_path):
    out = tmp_path / "w.html"
    assert call(folder, "--out", out) == 0
    page = out.read_text()
    assert not re.search(r"(src|href)\s*=|@import|url\(", page)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 3
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert len(re.findall(r"x\d+ ← y\d+: -?\d", page)) == 6 * 7 // 2 + 3 * 4 // 2


def test_labels_do_not_overlap():
    names = [f"layer {k}" for k in range(1, 31)]
    drawn = [
        heat_map([[1.0] * 30] * 2, ["attention", "feed-forward"], names, "factors"),
        bar_chart([(name, 1.0) for name in names], "factors", "weight"),
    ]
    for picture in drawn:
        places = [float(x) for x, text in re.findall(r"<text x='(\S+)'[^>]*>([^<]*)<", picture) if text in names]
        assert len(places) >= 10 and min(np.diff(places)) > 5.5 * len("layer 30")


def test_a_long_title_of_a_narrow_chart_is_not_cut():
    title = "weight of y2 in the encoder"
    for picture in (heat_map([[1.0]], ["x1"], ["y0"], title), bar_chart([("x3", 1.0)], title, "weight")):
        width, left = (float(re.search(f"{name}='([0-9.]+)'", picture)[1]) for name in ("width", "<text x"))
        assert width - left >= 8.7 * len(title)  # in bold DejaVu Sans, which is wide


def test_in_a_pipe_there_are_plain_numbers(folder, capsys):
    assert call(folder, "--all", "--column", 2) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "5-layer encoder, dlcl" in out
    assert re.search(r"^x6( +-?\d+\.\d\d){6}$", out, re.MULTILINE)
    assert re.search(r"^x3 -?\d+\.\d\d  x4 ", out, re.MULTILINE)


def test_on_a_terminal_a_weight_is_a_coloured_cell():
    weights = weights_of([[1.0, 0.0], [-2.0, 0.5]])
    wide, narrow = coloured(weights, True, 80), coloured(weights, True, 8)
    assert " 1.0" in wide.plain and "-2.0" in wide.plain
    assert max(map(len, narrow.plain.splitlines()[1:])) <= 8
    colours = {str(span.style) for span in wide.spans if " on " in str(span.style)}
    assert len(colours) == 3, "each value has its own colour"


def test_json_is_complete(folder, capsys):
    assert call(folder, "--json") == 0
    encoder, _decoder = json.loads(capsys.readouterr().out)
    assert len(encoder["matrix"]) == len(encoder["rows"]) == 6


@mark.parametrize("kind", ["residual", "dense", "average"])
def test_a_scheme_without_learned_weights_is_a_clear_sentence(kind, tmp_path, capsys):
    save_model(tmp_path / "model", model_of(CONNECTIONS[kind].Config()))
    assert call(tmp_path / "model") == 2
    learned = ", ".join([*LEARNED, "admin", "layer-scale", "rezero"])
    expected = f"has no learned weights to show: {kind} encoder and {kind} decoder (these have: {learned})"
    assert expected in capsys.readouterr().err


def test_refusals(folder, tmp_path, capsys):
    for arguments, message in [
        ([folder, "--out", tmp_path / "w.txt"], "the file name must end in .png, .svg, .pdf, .html, .csv"),
        ([folder, "--column", 6], "--column 6: the encoder has columns 0 to 5"),
        ([folder, "model.norm=pre"], "model.norm=pre: inspect weights takes a MODEL folder and no overrides"),
        (["en-de-pre-dlcl-30l"], "en-de-pre-dlcl-30l is not a MODEL folder"),
    ]:
        assert call(*arguments) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "w.txt").exists()


def test_text_and_csv_agree_on_what_is_blank():
    weights = weights_of([[1.0, 0.0], [0.01, 2.0]])
    assert to_text(weights, mask=True).count(" .") == to_csv([weights]).count(",0\n") + 1


def test_a_diverged_matrix_can_still_be_drawn():
    colours = Colours.of([[float("nan"), float("inf")], [1.0, -2.0]])
    assert {len(colours.hex(value)) for value in (float("nan"), float("inf"), 1.0)} == {7}
