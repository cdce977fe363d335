"""Models of the NLPL repository are read with what their meta.json tells."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bilm_tf import evaluate, make_bilm, run_model
from old_checkpoints import META, make_many_langs, write_many_langs, write_nlpl

from convert import ConversionError, convert_checkpoint
from convert.formats.nlpl import open_checkpoint
from convert.layout import Sources

SENTENCE = ["the", "naïve", "bank"]


def test_model_of_bilm_tf_is_read(tmp_path: Path) -> None:
    source = write_nlpl(tmp_path / "source", make_bilm())
    conversion = convert_checkpoint(source, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(make_bilm(), SENTENCE), atol=1e-5, rtol=0)
    assert conversion.format == "nlpl"
    names = [path.name for path in conversion.files]
    assert names == ["model.hdf5", "options.json", "meta.json"]


def test_model_of_elmo_for_many_langs_is_read(tmp_path: Path) -> None:
    source = write_many_langs(tmp_path / "source", make_many_langs())
    (source / "meta.json").write_text(json.dumps(META))
    conversion = convert_checkpoint(source, tmp_path / "model")
    assert conversion.format == "nlpl"
    assert conversion.config.forget_bias == 0


@pytest.mark.parametrize("is_packed", [True, False])
def test_vocabulary_may_be_packed(is_packed: bool, tmp_path: Path) -> None:
    bilm = make_bilm(reads_words=True)
    source = write_nlpl(tmp_path / "source", bilm)
    if is_packed:
        vocabulary = source / "vocab.txt"
        (source / "vocab.txt.gz").write_bytes(gzip.compress(vocabulary.read_bytes()))
        vocabulary.unlink()
    convert_checkpoint(source, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("meta", "origin", "languages"),
    [
        (
            META,
            (
                "Model `http://vectors.nlpl.eu/repository/20/000.zip` of the NLPL repository.",
                "Trained by `Somebody`, `Another`.",
                "Corpus: `Norwegian Web as Corpus` (1,687,000,000 tokens).",
            ),
            ("nb",),
        ),
        (
            {"id": 7, "corpus": {"description": "a\n\nb " * 300, "language": "tlh"}},
            ("Model `7` of the NLPL repository.", f"Corpus: `{('a b ' * 300)[:299]}`."),
            (),
        ),
        ({"corpus": [1, None, {}], "creators": "x", "contents": 3}, ("Corpus: `not named`.",), ()),
        ({"corpus": {"description": "a", "tokens": 10**300}}, ("Corpus: `a`.",), ()),
        ({"contents": [{"filename": []}, {"filename": {}}]}, (), ()),
        ({}, (), ()),
    ],
)
def test_description_is_honoured(
    meta: dict[str, Any], origin: tuple[str, ...], languages: tuple[str, ...], tmp_path: Path
) -> None:
    source = write_nlpl(tmp_path / "source", make_bilm(), meta)
    with open_checkpoint(Sources(source)) as checkpoint:
        assert (checkpoint.origin, checkpoint.languages) == (origin, languages)


@pytest.mark.parametrize("option", ["vocabulary", "softmax", "token_embeddings"])
def test_files_that_elmo_for_many_langs_does_not_have_are_refused(
    option: str, tmp_path: Path
) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    (folder / "meta.json").write_text(json.dumps(META))
    (tmp_path / "x").write_text("the\n")
    with pytest.raises(ConversionError, match=r"expected no --[a-z-]+ for files of ELMoForMany"):
        convert_checkpoint(folder, tmp_path / "out", **{option: tmp_path / "x"})


def test_of_several_files_the_named_one_is_read(tmp_path: Path) -> None:
    source = write_nlpl(tmp_path / "source", make_bilm())
    (source / "other.hdf5").touch()
    conversion = convert_checkpoint(source, tmp_path / "model")
    assert conversion.files[0].name == "model.hdf5"


def test_of_several_files_without_a_name_none_is_read(tmp_path: Path) -> None:
    source = write_nlpl(tmp_path / "source", make_bilm(), {})
    (source / "other.hdf5").touch()
    with pytest.raises(ConversionError, match=r"one weights file, found model.hdf5, other.hdf5"):
        convert_checkpoint(source, tmp_path / "model")


def test_broken_description_is_refused(tmp_path: Path) -> None:
    source = write_nlpl(tmp_path / "source", make_bilm())
    (source / "meta.json").write_text("{")
    with pytest.raises(ConversionError, match=r"meta.json: expected"):
        convert_checkpoint(source, tmp_path / "model")


def test_description_is_in_the_card(tmp_path: Path) -> None:
    source = write_nlpl(tmp_path / "source", make_bilm())
    convert_checkpoint(source, tmp_path / "model")
    card = (tmp_path / "model/README.md").read_text(encoding="utf-8")
    assert "language: nb\n" in card.replace("language:\n- nb\n", "language: nb\n")
    assert "Converted from `source` (format nlpl) by spacy-elmo" in card
    assert "Corpus: `Norwegian Web as Corpus` (1,687,000,000 tokens)." in card
