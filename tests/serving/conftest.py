import pytest
from phrasebook import make_model


@pytest.fixture(scope="session")
def phrase_folder(tmp_path_factory):
    """A MODEL folder that has learned the phrase book, well enough to read."""
    folder = tmp_path_factory.mktemp("models") / "en-de"
    make_model(folder)
    return folder
