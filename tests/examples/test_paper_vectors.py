"""examples/paper: vectors of one's own text, as a task reads them."""

import runpy
from pathlib import Path

import pytest

from hf_elmo.tasks.static_vectors import read_vectors

PATH = Path(__file__).resolve().parents[2] / "examples" / "paper" / "train_vectors.py"


@pytest.mark.parametrize("name", ["vectors.bin", "vectors.txt"])
def test_vectors_of_a_text_are_trained_and_read(name: str, tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\nthe dog sat\n" * 20)
    main = runpy.run_path(str(PATH))["main"]
    main([str(text)], tmp_path / name, size=8, epochs=1, workers=1)
    vectors = read_vectors(tmp_path / name)
    assert sorted(vectors.words) == ["cat", "dog", "sat", "the"]
    assert vectors.table.shape == (4, 8)
