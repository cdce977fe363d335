"""Import paths of before 0.1 work with a warning."""

from importlib import import_module

import pytest

OLD_PATHS = {
    "hf_elmo.corpus.embedding": "hf_elmo.inference.embedding",
    "hf_elmo.corpus.text_reader": "hf_elmo.text.text_reader",
}
NAMES = ("embed", "read_files")


@pytest.mark.parametrize(
    ("old", "new", "name"), [(*p, n) for p, n in zip(OLD_PATHS.items(), NAMES, strict=True)]
)
def test_an_old_path_gives_the_same_object_and_a_warning(old: str, new: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"import it from {new}"):
        found = getattr(import_module(old), name)
    assert found is getattr(import_module(new), name)


def test_an_old_path_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        getattr(import_module("hf_elmo.corpus.embedding"), "nothing")  # noqa: B009
