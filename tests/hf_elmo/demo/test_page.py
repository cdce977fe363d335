"""The demo as one HTML file."""

import base64
import json
import re
from typing import Any

import numpy as np
import pytest

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.demo.explorer import Explorer, read_collection
from hf_elmo.demo.page import EXAMPLES, make_page, make_query, misspell


def read_data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture
def explorer(tiny_model: ElmoModel) -> Explorer:
    return Explorer(tiny_model, ElmoTokenizer(), None, read_collection())


def test_the_page_holds_all_that_it_shows(explorer: Explorer) -> None:
    page = make_page(explorer, "tiny", is_served=False)
    data = read_data(page)
    assert len(page.encode()) < 3_000_000
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert data["model"] == "tiny"
    asked = {(*query["words"], query["position"]) for query in data["queries"]}
    for sentence, picked in EXAMPLES:
        words = sentence.split()
        position = words.index(picked)
        assert (*words, position) in asked
        words[position] = misspell(picked)
        assert (*words, position) in asked


def test_numbers_of_the_page_are_those_of_the_model(explorer: Explorer) -> None:
    query = make_query(explorer, ["my", "bank"], 1)
    products = np.frombuffer(base64.b64decode(query["products"]), dtype="<f4")
    expected = explorer.compare(["my", "bank"], 1).products
    assert np.array_equal(products.reshape(expected.shape), expected)


def test_markup_in_a_sentence_stays_text(tiny_model: ElmoModel) -> None:
    words = ["</script><script>alert(1)</script>", "<!--", "play", "bank"]
    collection = [("bank: x", words), ("bank: x", ["bank"]), ("play: x", words), ("play: x", words)]
    explorer = Explorer(tiny_model, ElmoTokenizer(), None, collection)
    page = make_page(explorer, "<b>tiny", is_served=False)
    data = read_data(page)
    assert data["sentences"][0] == words
    assert data["model"] == "<b>tiny"
    assert "alert(1)</script>" not in page


@pytest.mark.parametrize(
    ("word", "expected"), [("bank", "bnak"), ("letter", "letetr"), ("on", "onn"), ("a", "aa")]
)
def test_a_misspelt_word_is_another_word(word: str, expected: str) -> None:
    assert misspell(word) == expected
