import pytest
import torch
from phrasebook import make_model


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny models on a busy machine: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def phrase_folder(tmp_path_factory):
    """A MODEL folder that has learned the phrase book, well enough to read."""
    folder = tmp_path_factory.mktemp("models") / "en-de"
    make_model(folder)
    return folder
