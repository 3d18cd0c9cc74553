"""A tiny model that has learned to reverse digits, saved as a MODEL folder: trained once, for a few seconds."""

from pathlib import Path

import pytest
import torch
from digits import digit_tokenizers, tiny_model, train_tiny

from deepnmt.model.storage import save_model


@pytest.fixture(scope="session")
def digits_model(made_once) -> Path:
    def make(folder: Path) -> None:
        tokenizers = digit_tokenizers()
        model = tiny_model(tokenizers)
        train_tiny(model, tokenizers, steps=240)
        save_model(folder, model)
        tokenizers.save(folder)

    return made_once("digits", make)


@pytest.fixture(scope="session")
def random_model(tmp_path_factory) -> Path:
    """Untrained: it goes on as long as it may and is never sure, which is hard on a search."""
    folder = tmp_path_factory.mktemp("models") / "random"
    tokenizers = digit_tokenizers()
    model = tiny_model(tokenizers, seed=3, tie_output=False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)  # away from the flat start, so that what is said depends on what was said before
    save_model(folder, model)
    tokenizers.save(folder)
    return folder
