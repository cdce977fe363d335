"""The published models are read from their table, found by name, and listed."""

import re

import pytest

from convert import FORMATS, ConversionError
from convert.catalogue import (
    SOFTMAX,
    find_published,
    make_table,
    read_catalogue,
    suggest_published,
)
from convert.fetch import is_address

MODELS = read_catalogue()


def test_the_catalogue_has_the_published_models() -> None:
    assert len(MODELS) == 120
    assert sum(name.startswith("many-langs/") for name in MODELS) == 45
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", name) for name in MODELS)


def test_formats_are_known_or_the_reason_is_noted() -> None:
    known = {*FORMATS, SOFTMAX}
    for model in MODELS.values():
        assert model.format in known or (not model.format and model.note), model.name


def test_every_file_has_addresses() -> None:
    for model in MODELS.values():
        addresses = [*model.files, model.options, model.vocabulary]
        assert model.files
        assert all(model.files)
        assert all(is_address(address) for item in addresses for address in item), model.name
        assert len({item[0] for item in model.files}) == len(model.files)


def test_an_encrypted_address_is_tried_first() -> None:
    for model in MODELS.values():
        for addresses in (*model.files, model.options, model.vocabulary):
            schemes = [address.partition(":")[0] for address in addresses]
            assert schemes == sorted(schemes, reverse=True), model.name


def test_every_model_has_its_licence_and_where_it_is_listed() -> None:
    for model in MODELS.values():
        assert model.licence, model.name
        assert model.listed_in, model.name


def test_a_model_is_found_by_its_name() -> None:
    model = find_published("allenai/original")
    assert model is not None
    assert (model.format, model.languages) == ("bilm-hdf5", ["en"])
    assert len(model.files[0]) == 2  # a second address
    assert find_published("somebody/else") is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("allenai/transformer-elmo", r"another architecture \(Transformers in place of LSTMs\)"),
        ("tohoku/japanese", "reads characters by a vocabulary of its own"),
    ],
)
def test_models_that_cannot_be_converted_say_why(name: str, reason: str) -> None:
    with pytest.raises(ConversionError, match=f"{name}: this model is not supported: {reason}"):
        find_published(name)


def test_a_misspelt_name_gets_a_hint() -> None:
    assert suggest_published("allenai/orignal").startswith("Did you mean allenai/original or ")
    assert suggest_published("zzz") == ("elmo-convert --list-published lists all published models.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deeppavlov/ru-wiki", "apache-2.0"),
        ("seqvec/uniref50", None),  # MIT (repository): not said of the weights
        ("allenai/original", None),
        ("embeddia/slovenian", None),
    ],
)
def test_only_a_licence_of_the_weights_is_passed_on(name: str, expected: str | None) -> None:
    assert MODELS[name].hub_license == expected


def test_a_model_describes_its_origin_licence_and_citation() -> None:
    assert list(MODELS["sdadas/polish"].describe()) == [
        "Published as sdadas/polish (Polish; listed in "
        "sdadas/polish-nlp-resources@043ff5a README.md).",
        "Licence as stated by the publisher: LGPL-3.0 (repository).",
        "Please cite: Slawomir Dadas, polish-nlp-resources.",
    ]
    assert (
        "Licence as stated by the publisher: not stated." in MODELS["hub/lysandre-elmo"].describe()
    )


def test_languages_that_spacy_lacks_are_not_named_to_it() -> None:
    assert (MODELS["many-langs/gl"].language, MODELS["many-langs/gl"].languages) == ("gl", [])
    assert MODELS["many-langs/no"].languages == ["nb"]


@pytest.mark.parametrize("language", ["de", "German", "GER"])
def test_the_table_can_be_of_one_language(language: str) -> None:
    head, *rows, last = make_table(language).splitlines()
    assert head.split() == ["NAME", "LANGUAGE", "FORMAT", "LICENCE", "NOTE"]
    names = {row.split()[0] for row in rows}
    assert names == {"t-systems/german", "t-systems/german-tf", "crosslingual/de", "many-langs/de"}
    assert "November 2026" in last


def test_the_table_has_the_licence_of_all() -> None:
    table = make_table()
    assert table.count("\n") == len(MODELS) + 1
    assert re.search(r"seqvec/uniref50 .* bilm-hdf5 +MIT \(repository\)", table)


def test_an_unknown_language_is_named_with_those_that_are_there() -> None:
    with pytest.raises(ConversionError, match=r"Expected a language, ar, bg, .*; got klingon"):
        make_table("klingon")
