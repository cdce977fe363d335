"""What the configurations of tasks check."""

from typing import Any

import pytest

from hf_elmo import ElmoConfig
from hf_elmo.tasks import TASKS, ElmoNerConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"elmo_at": "none"}, "Expected words to come in by ELMo, by static vectors"),
        ({"static_size": 3}, "Expected static_vocab_size and static_size both 0"),
        ({"dropout": 1}, "Expected dropout from 0 to below 1, got 1."),
        ({"char_dropout": -0.5}, "Expected char_dropout from 0 to below 1, got -0.5."),
        ({"char_size": 3}, "Expected char_size and num_char_filters both 0"),
        (
            {"char_size": 3, "num_char_filters": 2, "char_filter_width": 21},
            "Expected char_filter_width from 1 to max_chars 20, got 21",
        ),
        (
            {
                "char_size": 3,
                "num_char_filters": 2,
                "elmo": {
                    "char_embedding_size": 0,
                    "word_vocab_size": 5,
                    "word_embedding_size": 2,
                    "sentence_start_word_id": 1,
                    "sentence_end_word_id": 2,
                },
            },
            "Expected a biLM that reads characters",
        ),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        ElmoNerConfig(**fields)


@pytest.mark.parametrize(
    ("place", "sizes"),
    [("input", (16, 0)), ("output", (4, 16)), ("both", (20, 16)), ("none", (4, 0))],
)
def test_elmo_widens_the_place_where_it_is_read(place: str, sizes: tuple[int, int]) -> None:
    static = {} if place == "input" else {"static_vocab_size": 3, "static_size": 4}
    config = ElmoNerConfig(elmo=ElmoConfig(projection_size=8), elmo_at=place, **static)
    assert (config.input_size, config.elmo_output_size) == sizes


def test_the_bilm_s_configuration_is_a_part() -> None:
    config = ElmoNerConfig(elmo={"projection_size": 8, "mix_l2": 0.1})
    assert isinstance(config.elmo, ElmoConfig)
    assert config.to_dict()["elmo"]["mix_l2"] == 0.1


@pytest.mark.parametrize("task", TASKS)
def test_dropout_can_be_a_whole_number(task: str) -> None:
    make = TASKS[task].model.config_class
    fields = [name for name in vars(make()) if name.endswith("dropout")]
    assert {vars(make(**dict.fromkeys(fields, 0)))[name] for name in fields} == {0}


def test_a_path_of_the_computer_of_training_is_not_kept() -> None:
    config = ElmoNerConfig(elmo={"_name_or_path": "/home/me/elmo"})
    assert "/home/me" not in config.to_json_string(use_diff=False)
