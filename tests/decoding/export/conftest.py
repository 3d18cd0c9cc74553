"""A residual model of either norm placement that has learned to end its sentences: trained once, for a second."""

from collections.abc import Callable
from pathlib import Path

import pytest
from exportable import save, unsure_model


@pytest.fixture(scope="session")
def unsure(made_once) -> Callable[[str], Path]:
    return lambda norm: made_once(f"unsure-{norm}", lambda folder: save(folder, unsure_model(norm=norm)))
