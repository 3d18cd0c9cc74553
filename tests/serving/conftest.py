from functools import partial

import pytest
from phrasebook import make_model


@pytest.fixture(scope="session")
def phrase_folder(made_once):
    """A MODEL folder that has learned the phrase book, well enough to read."""
    return made_once("en-de", partial(make_model, layers=6))
