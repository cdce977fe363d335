"""Files whose names are not those of text."""

import pytest

from hf_elmo.text.file_names import check_text_names


@pytest.mark.parametrize("name", ["a/text.jsonl", "x.PARQUET", "b.json.gz", "s3://x/y.arrow"])
def test_a_dataset_is_no_text(name: str) -> None:
    with pytest.raises(ValueError, match=f"Expected text, got {name}. Its name is that of a da"):
        check_text_names(["text.txt", name])


def test_other_names_are_those_of_text() -> None:
    check_text_names(["text.txt", "text", "json", "a.json/b.gz"])
