"""What several test modules share: tiny seeded models, and the old models of the oracle."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: several workers share the cores
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime, as `hf_elmo.onnx` does

import pytest
import spacy
import torch
from hypothesis import settings
from spacy.language import Language

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer

settings.register_profile("same everywhere", derandomize=True)
settings.load_profile("same everywhere")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the number of kills be chosen."""
    parser.addoption("--kills", type=int, default=10, help="of each command, at random times")


@pytest.fixture(scope="module", autouse=True)
def quick_garbage_collection() -> None:
    """Keep what is imported out of gc.collect, which each training calls: 0.3 s without this."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of corpora and checkpoints beside the project; tests skip without it."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the folder of corpora and old checkpoints beside the project")
    return folder


@pytest.fixture(scope="session")
def oracle() -> Path:
    """Return the folder of small old models and what the original programs compute with them."""
    return Path(__file__).parent / "data" / "oracle"


@pytest.fixture
def tiny_config() -> ElmoConfig:
    """A biLM of a few thousand weights with everything on, clips that fire included."""
    return ElmoConfig(
        char_embedding_size=4,
        char_filters=[[1, 4], [2, 8], [3, 16]],
        num_highway_layers=1,
        projection_size=8,
        cell_size=16,
        cell_clip=0.3,
        projection_clip=0.2,
    )


@pytest.fixture
def tiny_model(tiny_config: ElmoConfig) -> ElmoModel:
    """That biLM with seeded random weights, large enough for its clips to fire."""
    torch.manual_seed(0)
    model = ElmoModel(tiny_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@pytest.fixture
def two_threads() -> Iterator[None]:
    """PyTorch's two threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_folder(tiny_model: ElmoModel, tmp_path: Path) -> Path:
    """That biLM with a tokenizer in a folder, as `save_pretrained` writes them."""
    folder = tmp_path / "tiny-elmo"
    tiny_model.save_pretrained(folder)
    ElmoTokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def nlp() -> Language:
    """An empty pipeline; what is added to it draws the same initial weights in each run."""
    spacy.util.fix_random_seed(0)
    return spacy.blank("xx")
