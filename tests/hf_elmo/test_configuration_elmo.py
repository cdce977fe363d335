"""The configuration: its defaults are the published model; what cannot be built is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoConfig

from hf_elmo import ElmoConfig


def test_the_defaults_are_the_original_model() -> None:
    config = ElmoConfig()
    assert (config.char_vocab_size, config.max_characters_per_token) == (262, 50)
    assert (config.cell_size, config.projection_size, config.hidden_size) == (4096, 512, 1024)
    assert (config.num_filters, config.num_highway_layers, config.num_mixed_layers) == (2048, 2, 3)
    assert (config.cell_clip, config.projection_clip, config.use_residual) == (3.0, 3.0, True)


def test_a_forward_model_is_half_as_wide() -> None:
    assert ElmoConfig(bidirectional=False).hidden_size == 512


def test_a_model_of_words_has_no_filters() -> None:
    config = ElmoConfig(
        char_embedding_size=0,
        word_vocab_size=5,
        word_embedding_size=3,
        sentence_start_word_id=1,
        sentence_end_word_id=2,
    )
    assert (config.char_filters, config.num_filters) == ([], 0)


def test_two_configurations_share_no_filters() -> None:
    ElmoConfig().char_filters[0][1] = 7
    assert ElmoConfig().char_filters[0] == [1, 32]


def test_saving_and_loading_is_the_identity(tiny_config: ElmoConfig, tmp_path: Path) -> None:
    tiny_config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == tiny_config.to_dict() | {"_name_or_path": str(tmp_path)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"projection_size": 0}, "Expected projection_size from 1 to 1048576, got 0"),
        ({"num_scalar_mixes": 0}, "Expected num_scalar_mixes from 1 to 1000, got 0"),
        ({"vocab_size": -1}, "Expected vocab_size from 0 to 2147483647, got -1"),
        ({"cell_clip": 0.0}, "Expected cell_clip above 0 and finite, or None, got 0.0"),
        ({"dropout": 1.0}, "Expected dropout from 0 to below 1, got 1.0"),
        ({"use_cell_projection": False}, "must be equal, got 4096 and 512"),
        ({"hidden_size": 7}, "Expected hidden_size 1024, got 7"),
        ({"word_vocab_size": 5}, "both 0 or both above 0, got 5 and 0"),
        ({"char_embedding_size": 0}, "Expected characters or a word lexicon"),
        (
            {"word_vocab_size": 5, "word_embedding_size": 3},
            "Expected sentence_start_word_id from 1 to 4, got None",
        ),
        ({"use_token_projection": False}, "projection_size 512, got 2048"),
        (
            {"char_filters": []},
            r"Expected 1 to 1000 char_filters \[\[width, number\], ...\], got 0",
        ),
        ({"char_filters": [[51, 4]]}, r"max_characters_per_token 50, got \[51, 4\]"),
        ({"num_highway_layers": -1}, "Expected num_highway_layers from 0 to 1000, got -1"),
        (
            {"max_characters_per_token": 2, "char_filters": [[1, 4]]},
            r"from 3 \(a character and two marks\) to 10000, got 2",
        ),
        ({"char_padding_id": 262}, "Expected char_padding_id from 1 to 261, got 262"),
        ({"mix_weights": [0.0, 1.0]}, r"Expected 3 mix_weights .*, got 2"),
        ({"mix_weights": [0.0, math.nan, 0.0]}, "Expected finite mix_weights, got"),
        ({"mix_weights": [0.0, math.inf, 0.0]}, "Expected finite mix_weights, got"),
        ({"mix_gamma": math.inf}, "Expected mix_gamma from -3e"),
        ({"mix_gamma": 1e300}, "Expected mix_gamma from -3e"),
        ({"mix_l2": math.nan}, "Expected mix_l2 from 0 to 3e"),
        ({"forget_bias": math.nan}, "Expected forget_bias from -3e"),
        ({"cell_clip": math.nan}, "Expected cell_clip above 0 and finite, or None, got nan"),
        ({"projection_clip": 10**400}, "Expected projection_clip above 0 and finite"),
        ({"num_hidden_layers": 10**9}, "Expected num_hidden_layers from 1 to 1000, got 10"),
        ({"num_highway_layers": 10**6}, "Expected num_highway_layers from 0 to 1000, got 10"),
        ({"char_filters": [[1, 1]] * 100_000}, "Expected 1 to 1000 char_filters .*, got 100000"),
        ({"char_filters": [[1, 10**12]]}, "Expected num_filters from 0 to 1048576, got 10"),
        ({"cell_size": 10**30}, "Expected cell_size from 1 to 1048576, got 10"),
    ],
)
def test_what_cannot_be_built_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StrictDataclassClassValidationError, match=message):
        ElmoConfig(**settings)


def test_more_labels_than_can_have_names_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected num_labels from 0 to 1048576, got 10"):
        ElmoConfig(num_labels=10**12)


@pytest.mark.parametrize("model_type", ["bert", 5, None])
def test_the_configuration_of_another_model_is_refused(model_type: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ValueError, match="Expected model_type 'elmo', got "):
        ElmoConfig.from_pretrained(tmp_path)


def test_integers_are_accepted_in_place_of_floats() -> None:
    fields = {"dropout": 0, "forget_bias": 1, "mix_l2": 2, "classifier_dropout": 0}
    fields |= {"mix_gamma": 2, "mix_weights": [0, 1, 0]}
    config = ElmoConfig.from_dict(fields)
    assert {name: getattr(config, name) for name in fields} == fields


def test_the_padding_of_a_tokenizer_needs_no_target_word(
    tiny_config: ElmoConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_config.pad_token_id = 0  # as Trainer does
    tiny_config.save_pretrained(tmp_path)
    assert ElmoConfig.from_pretrained(tmp_path).pad_token_id == 0
    assert "unexpected behavior" not in caplog.text
