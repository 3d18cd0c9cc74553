"""What `deepnmt export --to huggingface` writes, `deepnmt convert` reads back as the same model."""

import pytest
import torch
from digits import reversed_digits
from exportable import random_model, save

import deepnmt
from deepnmt.commands.export import NAMES
from deepnmt.decoding import export as exporting
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError
from deepnmt.model.connections.dlcl import DlclConfig

TEXTS = [source for source, _ in reversed_digits(20, seed=7)]


@pytest.mark.parametrize(
    "shape",
    [
        {"norm": "pre", "share_embeddings": True},
        {"norm": "pre", "tie_output": False},
        {"norm": "post", "share_embeddings": True},
        {"norm": "post", "output_bias": True, "start_id": 0, "first_position": 0, "positions": "sinusoidal-hf"},
    ],
)
@torch.no_grad()
def test_an_export_to_hugging_face_converts_to_the_same_model(shape, tmp_path):
    model = random_model(**shape)
    exporting.export(save(tmp_path / "MODEL", model), tmp_path / "OUT", "huggingface")
    again = deepnmt.convert(tmp_path / "OUT", tmp_path / "AGAIN")
    source, target = torch.randint(3, 57, (3, 7)), torch.randint(3, 57, (3, 5))
    torch.testing.assert_close(again(source, target), model(source, target))
    expected = Translator(tmp_path / "MODEL").translate(TEXTS, beam=2, length_penalty=0.6)
    assert Translator(tmp_path / "AGAIN").translate(TEXTS, beam=2, length_penalty=0.6) == expected


def test_a_folder_with_a_modelling_file_is_not_read_back(tmp_path):
    exporting.export(
        save(tmp_path / "MODEL", random_model(connections=(DlclConfig(), None))), tmp_path / "OUT", "huggingface"
    )
    with pytest.raises(InputError, match="use the MODEL that it was exported from"):
        deepnmt.convert(tmp_path / "OUT", tmp_path / "AGAIN")


def test_the_command_lists_the_formats():
    assert tuple(exporting.FORMATS) == NAMES
