"""bilm-tf's options become a configuration and come back; others are refused."""

from pathlib import Path
from typing import Any

import pytest
from bilm_tf import make_bilm

from convert import ConversionError
from convert.formats.bilm_options import guess_options, make_config, make_options, read_options
from hf_elmo import ElmoConfig


@pytest.mark.parametrize(
    "variant",
    [
        {"cell_clip": 0.4, "proj_clip": 0.3},
        {"num_highways": 2, "activation": "tanh", "skips": False},
        {"is_bidirectional": False, "dim": 4, "max_characters": 60},
        {"filters": ((1, 1), (3, 3))},
    ],
)
def test_options_come_back(variant: dict[str, Any]) -> None:
    options = make_bilm(**variant).options
    assert make_options(make_config(options)) == options


def test_the_dropout_of_training_comes_back() -> None:
    options = make_bilm().options | {"dropout": 0.4}
    assert make_config(options).dropout == 0.4
    assert make_options(make_config(options)) == options
    with pytest.raises(ConversionError, match="options: Expected dropout"):
        make_config(options | {"dropout": 1.5})


def test_options_of_words_count_them() -> None:
    options = make_bilm(reads_words=True).options
    others = {"sentence_start_word_id": 1, "sentence_end_word_id": 2}
    config = make_config(options, word_vocab_size=7, word_embedding_size=4, **others)
    assert make_options(config) == options | {"n_tokens_vocab": 6}


def test_clips_of_zero_are_none() -> None:
    config = make_config(make_bilm(cell_clip=0, proj_clip=0).options)
    assert (config.cell_clip, config.projection_clip) == (None, None)


def test_guessed_options_are_those_of_the_published_models() -> None:
    options = guess_options(
        projection_size=512,
        cell_size=4096,
        num_layers=2,
        char_embedding_size=16,
        filters=[(1, 32), (7, 1024)],
        num_highways=2,
    )
    config = make_config(options)
    assert (config.cell_clip, config.projection_clip, config.use_residual) == (3, 3, True)
    assert (config.char_activation, config.max_characters_per_token) == ("relu", 50)


def test_configurations_beyond_bilm_tf_are_refused_with_all_that_it_lacks(
    tiny_config: ElmoConfig,
) -> None:
    tiny_config.word_start_char_id = 200
    tiny_config.use_token_projection = False
    error = "does not support this model: its characters are not bytes; its token projection"
    with pytest.raises(ConversionError, match=error):
        make_options(tiny_config)


@pytest.mark.parametrize("text", ["{'lstm'", "[1]", "[" * 100_000, "\xff"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConversionError, match=r"options.json: expected (bilm-tf's|a JSON object)"):
        read_options(path)


def test_a_byte_order_mark_is_no_part_of_the_options(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"lstm": {}}', "utf-8-sig")
    assert read_options(tmp_path / "options.json") == {"lstm": {}}
