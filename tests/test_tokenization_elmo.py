"""Tests of the tokenizer: ids against hand-spelled words and the original programs."""

import json
from pathlib import Path

import numpy as np
import pytest

from hf_elmo import ElmoTokenizer

BOW, EOW, PAD = 259, 260, 261


def spell(word: bytes, num_cells: int = 50) -> list[int]:
    """Spell a word by hand, as the notes of bilm-tf and AllenNLP have it, shifted by one."""
    row = [BOW, *(byte + 1 for byte in word[: num_cells - 2]), EOW]
    return row + [PAD] * (num_cells - len(row))


def encode(tokenizer: ElmoTokenizer, words: list[str]) -> list[list[int]]:
    return tokenizer(words, is_split_into_words=True)["input_ids"].tolist()


@pytest.mark.parametrize(
    ("word", "spelled"),
    [
        ("The", b"The"),
        ("", b""),
        (" ", b" "),
        ("\u00a0", b"\xc2\xa0"),
        ("New York", b"New York"),
        ("<pad>", b"<pad>"),
        ("[PAD]", b"[PAD]"),
        ("\U0001f40d", b"\xf0\x9f\x90\x8d"),
        ("\ud83d", b""),  # a lone surrogate vanishes, its word does not
        ("a\udc0db", b"ab"),
        ("\0", b"\0"),
        ("x" * 10_000, b"x" * 48),
        ("é" * 25, "é".encode() * 24),
        ("漢" * 17, "漢".encode() * 16),
        ("a" + "é" * 25, b"a" + "é".encode() * 23 + b"\xc3"),  # cut within a character
    ],
)
def test_a_word_is_one_row_of_its_bytes(word: str, spelled: bytes) -> None:
    assert encode(ElmoTokenizer(), [word]) == [spell(spelled)]


@pytest.mark.parametrize("program", ["allennlp", "bilm"])
@pytest.mark.parametrize("model", ["tiny", "tinyF", "odd", "odd2", "train_tiny"])
def test_ids_equal_those_of_the_original_programs(shared: Path, program: str, model: str) -> None:
    path = shared / f"oracle/expected/{program}_{model}.npz"
    if not path.is_file():
        pytest.skip(f"{program} did not run this model")
    text = (shared / "oracle/expected/sentences.json").read_text(encoding="utf-8")
    sentences = json.loads(text)["batches"]
    with np.load(path) as expected:
        for key in [key for key in expected if key.endswith("/char_ids")]:
            ids = expected[key]
            batch = sentences[key.split("/")[1].split("_")[1]]
            if program == "bilm":  # there the boundaries are among the rows
                batch = [["<S>", *words, "</S>"] for words in batch]
            tokenizer = ElmoTokenizer(max_characters_per_token=ids.shape[2])
            encoded = tokenizer(batch, is_split_into_words=True, padding=True, return_tensors="np")
            np.testing.assert_array_equal(encoded["input_ids"], ids, err_msg=key)
