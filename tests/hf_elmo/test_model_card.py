"""The model card, and what saving and pushing do with it."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
    ElmoTokenizer,
)
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.model_card import make_model_card, quote


def test_metadata_says_what_is_known(tiny_config: ElmoConfig) -> None:
    card = make_model_card(tiny_config, license="cc-by-4.0", language="no", tags=["news"])
    assert ModelCard(card).data.to_dict() == {
        "language": ["no"],  # Norwegian, which YAML would take for a "false"
        "license": "cc-by-4.0",
        "library_name": "transformers",
        "pipeline_tag": "feature-extraction",
        "tags": ["elmo", "spacy", "news"],
    }


def test_licence_and_language_are_never_assumed(tiny_config: ElmoConfig) -> None:
    card = make_model_card(tiny_config)
    assert not {"license", "language"} & ModelCard(card).data.to_dict().keys()
    assert "Not stated" in card


def test_card_has_every_section(tiny_config: ElmoConfig) -> None:
    sections = [
        line for line in make_model_card(tiny_config).splitlines() if line.startswith("## ")
    ]
    names = ["Use", "Sizes", "Training", "Limits", "Licence", "Citation"]
    assert sections == [f"## {name}" for name in names]


def test_card_says_where_the_weights_come_from(tiny_config: ElmoConfig) -> None:
    card = make_model_card(tiny_config, source="From TF.", files=[("weights.hdf5", "ab12")])
    assert "From TF.\n- `weights.hdf5`, SHA-256 `ab12`\n" in card


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bidirectional": False, "hidden_size": None},
        {"use_cell_projection": False, "cell_size": 8},
        {"use_token_projection": False, "projection_size": 28, "hidden_size": 56},
        {"num_hidden_layers": 3, "num_highway_layers": 0},
        {
            "word_vocab_size": 10,
            "word_embedding_size": 5,
            "sentence_start_word_id": 1,
            "sentence_end_word_id": 2,
        },
        {
            "char_embedding_size": 0,
            "word_vocab_size": 10,
            "word_embedding_size": 5,
            "sentence_start_word_id": 1,
            "sentence_end_word_id": 2,
        },
    ],
)
def test_parameters_are_counted_as_in_the_model(
    tiny_config: ElmoConfig, changes: dict[str, Any]
) -> None:
    config = ElmoConfig(**{**tiny_config.to_dict(), **changes})
    number = ElmoModel(config).num_parameters()
    assert f"| Parameters of the biLM | {number:,} |" in make_model_card(config)


@pytest.mark.parametrize(
    ("head", "shape"),
    [
        (ElmoModel, "out.elmo: (2, 5, 16)"),
        (ElmoForTokenClassification, "out.logits: (2, 5, 2)"),
        (ElmoForSequenceClassification, "out.logits: (2, 2)"),
    ],
)
def test_the_cards_example_runs(
    tiny_config: ElmoConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    head: type[ElmoPreTrainedModel],
    shape: str,
) -> None:
    head(tiny_config).save_pretrained(tmp_path / "my-model")
    ElmoTokenizer().save_pretrained(tmp_path / "my-model")
    config = head.from_pretrained(tmp_path / "my-model").config
    card = make_model_card(config, name="my-model")
    example = card.split("```python\n")[1].split("```")[0]
    assert example.rstrip().splitlines()[-1].split("#")[1].strip().startswith(shape)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    name, size = shape.removeprefix("out.").split(": ")
    assert str(tuple(names["out"][name].shape)) == size


def test_saving_writes_no_card(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path)
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_the_code_on_the_bundled_models_card_runs_as_pasted(number: int) -> None:
    card = (Path(resolve_name(BUNDLED_NAME)) / "README.md").read_text(encoding="utf-8")
    code = card.split("```python\n")[1 + number].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert "out.elmo: (2, 5, 256)" in card
    shape = names["out"].elmo.shape if number == 0 else names["doc"].tensor.shape
    assert shape == ((2, 5, 256) if number == 0 else (6, 256))


def test_card_is_that_of_the_models_class(tiny_config: ElmoConfig) -> None:
    config = ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 7})
    for head, other in ((ElmoForPreTraining, "ElmoModel"), (ElmoModel, "ElmoForPreTraining")):
        config.architectures = [other]
        assert ("softmax" in head(config).make_card()) == (head is ElmoForPreTraining)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("weights.hdf5", "`weights.hdf5`"),
        ("x`\n\n## Licence\n\n[Fetch](http://a)", "`x' ## Licence [Fetch](http://a)`"),
        ("\x1b[2J\u202egreen", "`?[2J?green`"),
        ("", "`(no text)`"),
        ("می\u200cخواهم", "`می\u200cخواهم`"),
        ("a" * 301, f"`{'a' * 300}…`"),
    ],
)
def test_text_of_others_makes_no_section_of_a_card(text: str, quoted: str) -> None:
    assert quote(text) == quoted
