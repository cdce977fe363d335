import random

import pytest

from hf_elmo.language_model.typing_errors import misspell


def test_an_error_changes_one_place_of_a_word() -> None:
    rng = random.Random(0)
    spellings = {misspell("bank", rng) for _ in range(5000)}

    assert {"abnk", "bnak", "bakn"} < spellings  # the wrong order
    assert {"ank", "bnk", "bak"} < spellings  # missing
    assert {"bbank", "baank", "bannk"} < spellings  # twice
    assert {"bxnk", "qank"} < spellings  # replaced
    assert {len(spelling) for spelling in spellings} == {3, 4, 5}


@pytest.mark.parametrize("word", ["naïve", "घरेलू", "1990ä"])
def test_letters_of_other_scripts_are_replaced_by_letters_of_the_word(word: str) -> None:
    rng = random.Random(0)
    assert {letter for _ in range(500) for letter in misspell(word, rng)} == set(word)


@pytest.mark.parametrize("word", ["", "a", "of"])
def test_short_words_stay_as_they_are(word: str) -> None:
    assert {misspell(word, random.Random(seed)) for seed in range(20)} == {word}
